"""What serving engines need round the operations. Importing this package imports no engine; its modules need torch."""
