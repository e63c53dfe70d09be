# Runs the example of the README (PROGRAM), and checks that README quotes its SOURCE to the letter.
execute_process(COMMAND ${PROGRAM} OUTPUT_VARIABLE out RESULT_VARIABLE status)
if(NOT status EQUAL 0 OR NOT out STREQUAL
   "block 0, score 42.7\nblock 4, score 33.8\nblock 5, score 62.4\n")
  message(FATAL_ERROR "the example ended with ${status} and printed:\n${out}")
endif()

file(READ ${SOURCE} source)
file(READ ${README} readme)
string(FIND "${readme}" "```cpp\n${source}```" place)
if(place EQUAL -1)
  message(FATAL_ERROR "${README} does not quote ${SOURCE} to the letter")
endif()
