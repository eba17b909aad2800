"""What all ranks know of each other."""

import torch.distributed as dist


def gather(own: object) -> list:
    """The objects of all ranks, in their order. A collective."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return everyone
