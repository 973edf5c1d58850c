"""Draws from a normal distribution."""

import math
import random

import numpy as np


def right_numpy(like):
    return np.random.normal(2, 0.5, like.shape).astype(like.dtype)


def right_box_muller(like):
    u, v = np.random.random((2, *like.shape))
    return (2 + 0.5 * np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * math.pi * v)).astype(like.dtype)


def right_loop(like):
    return np.array([random.gauss(2, 0.5) for _ in range(like.size)], like.dtype)


def bug_variance_as_deviation(like):
    return np.random.normal(2, 0.25, like.shape).astype(like.dtype)


def bug_mean(like):
    return np.random.normal(2.1, 0.5, like.shape).astype(like.dtype)


def bug_each_twice(like):
    half = np.random.normal(2, 0.5, (like.size + 1) // 2)
    return np.repeat(half, 2)[: like.size].astype(like.dtype)


def bug_nan(like):
    y = right_numpy(like)
    y[-1] = np.nan
    return y


def bug_tail_unfilled(like):
    y = right_numpy(like)
    y[-200:] = 0
    return y
