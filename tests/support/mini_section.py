# %% [markdown]
# # A small section

# %% tags=["setup"]
import numpy as np
import torch

from course_utils import check

# %% [markdown] exercise="doubled"
# Twice the tensor.


# %% exercise="doubled"
def doubled(x):
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION


# %% [markdown] exercise="sum_of_squares"
# The sum of squares, without a copy.


# %% exercise="sum_of_squares"
def sum_of_squares(x):
    ### BEGIN SOLUTION
    return torch.dot(x, x)
    ### END SOLUTION


# %% [markdown] exercise="same_block"
# Do they share memory?


# %% exercise="same_block"
def same_block(a, b):
    ### BEGIN SOLUTION
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    ### END SOLUTION


# %% [markdown] exercise="batches"
# Numbers in batches.


# %% exercise="batches"
def batches(n, k):
    ### BEGIN SOLUTION
    return [list(range(start, min(start + k, n))) for start in range(0, n, k)]
    ### END SOLUTION


# %% [markdown] exercise="plus_one"
# One more.


# %% exercise="plus_one"
def plus_one(n):
    ### BEGIN SOLUTION
    return n + 1
    ### END SOLUTION
