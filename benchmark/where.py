"""Where an agent has been lately, and where its clusters were found: MyWayHome in blocks of 64 x 64 map units.

Usage: python benchmark/where.py runs/NAME

Prints the share of visits in each block between the run's last two checkpoints, the share in the two rooms next to
the start of "sparse" (x < 576, -300 < y < -110), and, for Just Cluster It, how many rows of the table have their mean
position in those rooms, for the first and the second half of the training steps.
"""

import argparse
from pathlib import Path

import torch

BLOCK = 4  # cells of 16 map units


def near_start(x, y):
    return (x < 576) & (y > -300) & (y < -110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a ViZDoom run with two checkpoints")
    run = parser.parse_args().run
    before, after = (torch.load(run / f"checkpoint{name}.pt", weights_only=True) for name in (".previous", ""))
    earlier = dict(zip(map(tuple, before["visits"]["cells"].tolist()), before["visits"]["counts"].tolist()))
    blocks, near, total = {}, 0, 0
    for (x, y), count in zip(after["visits"]["cells"].tolist(), after["visits"]["counts"].tolist()):
        visits = count - earlier.get((x, y), 0)
        block = (x // BLOCK, y // BLOCK)
        blocks[block] = blocks.get(block, 0) + visits
        near += visits * bool(near_start(torch.tensor(16 * x + 8), torch.tensor(16 * y + 8)))
        total += visits

    first, last = before["counters"][1], after["counters"][1]
    print(f"{total} visits between steps {first} and {last}, in percent")
    columns = sorted({x for x, _ in blocks})
    print("y \\ x " + "".join(f"{64 * x:6d}" for x in columns))
    for y in sorted({y for _, y in blocks}, reverse=True):
        shares = (f"{100 * blocks[x, y] / total:6.1f}" if (x, y) in blocks else "     ." for x in columns)
        print(f"{64 * y:5d} " + "".join(shares))
    print(f"in the two rooms near the start: {near / total:.0%}")
    if "table" in after["method"]:
        table = after["method"]["table"]
        rows_near = near_start(*table["positions"].T)
        early = table["births"] <= last // 2
        for name, half in (("first", early), ("second", ~early)):
            share = f"{int(rows_near[half].sum())} of {int(half.sum())}"
            print(f"rows opened in the {name} half of the steps with their mean position there: {share}")


if __name__ == "__main__":
    main()
