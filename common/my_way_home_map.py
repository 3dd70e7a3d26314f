"""The map of ViZDoom's MyWayHome: where the player starts, and where it can go.

No WAD file comes with this repository: the start is decided by 44 bytes of compiled script inside the my_way_home.wad
of the installed vizdoom package. In a copy of that file they are overwritten by another script of the same length.
"""

import re

import numpy as np

PICK_ANY_SPOT = bytes.fromhex("1d021d021d030ea7010f391900")  # spot = random(first, first + count - 1)
GO_TO_SPOT = bytes.fromhex("a7001c00c41c00c5b00000f02b36")  # SetActorPosition(0, GetActorX(spot), GetActorY(spot), 0)
TURN_ANYWHERE = bytes.fromhex("b00000030000010039f024")  # SetActorAngle(0, random(0.0, 1.0))
FINISH = bytes.fromhex("a700b5008e01")  # reward = 0; ClearInventory(); terminate
STOCK_SCRIPT = PICK_ANY_SPOT + GO_TO_SPOT + TURN_ANYWHERE + FINISH
STARTS = {"dense": None, "sparse": (10, 0.0, 0.01), "very-sparse": (15, 0.49, 0.51)}  # spot, angles in turns
SPOT_TYPE, ARMOUR_TYPE = 9001, 2018  # of things
PLAYER_RADIUS = 16  # of a square, in map units


def patch_start(wad, task):
    """Return the bytes of the stock WAD file with the player's start changed to that of the task."""
    if task not in STARTS:
        raise ValueError(f"Unknown task {task!r}: choose one of {', '.join(STARTS)}.")
    if wad.count(STOCK_SCRIPT) != 1:
        raise RuntimeError("The installed vizdoom's my_way_home.wad does not hold the known start script exactly once.")
    if task == "dense":
        return wad
    spot, *angles = STARTS[task]
    lowest, highest = (round(angle * 65536).to_bytes(4, "little") for angle in angles)  # 16.16 fixed point
    script = bytes([0xA7, spot, 0x19, 0x00]) + GO_TO_SPOT
    script += b"\xa7\x00\x03" + lowest + b"\x03" + highest + b"\x39\xf0\x24" + FINISH
    return wad.replace(STOCK_SCRIPT, script.ljust(len(STOCK_SCRIPT), b"\x01"))  # padded, so that no offset moves


def landmarks(wad, task):
    """Return the walls (W, 2, 2) from end to end, where the task can start (S, 2), and where its goal is (1, 2)."""
    vertices = re.findall(rb"vertex[^{]*{\s*x = ([-.\d]+);\s*y = ([-.\d]+);", wad)
    walls = re.findall(rb"linedef[^{]*{\s*v1 = (\d+);\s*v2 = (\d+);[^}]*blocking = true;", wad)
    things = re.findall(rb"thing[^{]*{\s*id = (\d+);\s*x = ([-.\d]+);\s*y = ([-.\d]+);[^}]*type = (\d+);", wad)
    things = np.array(things).astype(float)  # (..., 4): spot, x, y, type
    starts = things[things[:, 3] == SPOT_TYPE]
    if STARTS[task]:
        starts = starts[starts[:, 0] == STARTS[task][0]]
    return {
        "walls": np.array(vertices).astype(float)[np.array(walls).astype(int)],
        "starts": starts[:, 1:3],
        "goals": things[things[:, 3] == ARMOUR_TYPE, 1:3],
    }


def reachable_points(wad):
    """Return the (K, 2) points, one per 2 x 2 map units, that the player's centre can get to."""
    walls = landmarks(wad, "dense")["walls"]
    low, high = walls.min((0, 1)), walls.max((0, 1))
    xs, ys = np.arange(low[0] + 1, high[0], 2), np.arange(low[1] + 1, high[1], 2)
    free = np.ones((len(xs), len(ys)), bool)
    for ends in walls:  # all of them run along an axis
        (left, bottom), (right, top) = ends.min(0) - PLAYER_RADIUS, ends.max(0) + PLAYER_RADIUS
        free[np.ix_((left < xs) & (xs < right), (bottom < ys) & (ys < top))] = False
    reached = [(np.abs(xs - 240).argmin(), np.abs(ys + 176).argmin())]  # flood fill from the start of "sparse"
    for x, y in reached:  # grows meanwhile
        for point in ((x - 1, y), (x + 1, y), (x, y - 1), (x, y + 1)):
            if free[point]:
                free[point] = False
                reached.append(point)
    indices = np.array(reached)
    return np.stack([xs[indices[:, 0]], ys[indices[:, 1]]], 1)
