"""Draws the curves of the CPU benchmark: plot.py cpu.txt cpu.svg. Needs nothing but Python."""

import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 70, 90, 40, 50
COLOURS = ["#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2"]


def read(path):
    curves, machine, threads = {}, "", ""
    for line in open(path, encoding="utf-8"):
        if line.startswith("machine: "):
            machine = line[9:].split(", load")[0].strip()
        if line.startswith("curve "):
            rows, keys, threads, time = line.split()[1:]
            curves.setdefault(int(rows), []).append((int(keys), float(time)))
    return curves, machine, threads


def label(n):
    return f"{n >> 20}M" if n >> 20 else f"{n >> 10}k" if n >> 10 else str(n)


def draw(curves, machine, threads):
    points = [p for curve in curves.values() for p in curve]
    x_low, x_high = (math.log2(f(k for k, _ in points)) for f in (min, max))
    y_low = math.floor(math.log10(min(t for _, t in points)))
    y_high = math.ceil(math.log10(max(t for _, t in points)))

    def x(keys):
        return LEFT + (math.log2(keys) - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def y(time):
        return HEIGHT - BOTTOM - (math.log10(time) - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20">Time of a score against keys, by query rows; {machine}, {threads} thread{"" if threads == "1" else "s"}</text>',
    ]
    for power in range(y_low, y_high + 1):
        name = f"{10 ** power:g} us" if power < 3 else f"{10 ** (power - 3):g} ms" if power < 6 else f"{10 ** (power - 6):g} s"
        out.append(f'<path d="M{LEFT} {y(10 ** power):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(10 ** power) + 4:.1f}" text-anchor="end">{name}</text>')
    for keys in sorted({k for k, _ in points}):
        out.append(f'<path d="M{x(keys):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>')
        out.append(f'<text x="{x(keys):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{label(keys)}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle">keys</text>')
    ends = []
    for colour, (rows, curve) in zip(COLOURS, sorted(curves.items())):
        path = " ".join(f"{x(k):.1f},{y(t):.1f}" for k, t in curve)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x(k):.1f}" cy="{y(t):.1f}" r="3" fill="{colour}"/>' for k, t in curve]
        ends.append((x(curve[-1][0]) + 8, y(curve[-1][1]) + 4, colour, f"{rows} row{'' if rows == 1 else 's'}"))
    lowest = {}  # names below each other where curves end close together
    for right, height, colour, name in sorted(ends):
        height = max(height, lowest.get(right, 0) + 13)
        lowest[right] = height
        out.append(f'<text x="{right:.1f}" y="{height:.1f}" fill="{colour}">{name}</text>')
    return "\n".join(out + ["</svg>", ""])


if __name__ == "__main__":
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(draw(*read(sys.argv[1])))
