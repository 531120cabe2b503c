"""Images, their partition over the clients, and the noise each client sees."""

from .images import Images, identity, load_images
from .noise import Noise, make_noise
from .partition import Partition, make_partition

__all__ = ["Images", "Noise", "Partition", "identity", "load_images", "make_noise", "make_partition"]
