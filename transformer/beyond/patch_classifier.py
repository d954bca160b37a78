"""Image classification: the encoder over square patches.

Made from book/18-not-only-words.md: edit the chapter, not this file.
"""

from jaxtyping import Float
from torch import Tensor, nn

from transformer.beyond.gpt2 import LearnedPositions
from transformer.checks import require_divides, require_positive
from transformer.encoder import Encoder

__all__ = [
    "image_patches",
    "PatchClassifier",
]


def _require_divisible(images: Tensor, size: int) -> None:
    require_positive(size=size)
    shape = tuple(images.shape)
    if len(shape) != 3 or shape[1] % size or shape[2] % size:
        raise ValueError(
            "images must be (batch, height, width), both a multiple of "
            f"size = {size}, got {shape}"
        )


def _require_grid(image_size: int, patch_size: int) -> None:
    require_positive(image_size=image_size, patch_size=patch_size)
    require_divides(patch_size=patch_size, image_size=image_size)


def _require_images(images: Tensor, image_size: int) -> None:
    shape = tuple(images.shape)
    if len(shape) != 3 or not shape[0] or shape[1:] != (image_size, image_size):
        raise ValueError(
            f"images must be (batch, {image_size}, {image_size}), got {shape}"
        )
    if not images.is_floating_point():
        raise ValueError(f"images must be floating point, got {images.dtype}")


def image_patches(
    images: Float[Tensor, "batch height width"], size: int
) -> Float[Tensor, "batch patches pixels"]:
    """Cut images into squares of `size` × `size` pixels, row by row, each a vector.

    Raises:
        ValueError: for a size below 1, or one that does not divide height and width.
    """
    _require_divisible(images, size)
    squares = images.unfold(1, size, size).unfold(2, size, size)
    return squares.flatten(3).flatten(1, 2)  # from (batch, rows, columns, size, size)


class PatchClassifier(nn.Module):
    """Image classifier: an encoder over patches (Dosovitskiy et al. 2021).

    It takes square images, (batch, image_size, image_size), and gives logits for the
    classes, (batch, classes). Positions are a learned table. The outputs of all patches
    are averaged, where theirs reads that of a class token.

    Raises:
        ValueError: for sizes or a dropout rate that its parts refuse, a `patch_size`
            that does not divide `image_size`, and images of another size.
    """

    def __init__(
        self,
        image_size: int,
        patch_size: int,
        num_classes: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_layers: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_positive(num_classes=num_classes, d_model=d_model)
        _require_grid(image_size, patch_size)
        self.image_size, self.patch_size = image_size, patch_size
        places = (image_size // patch_size) ** 2
        self.embedding = nn.Linear(patch_size**2, d_model)
        self.position: nn.Module = LearnedPositions(d_model, dropout, places)
        self.encoder = Encoder(
            d_model, num_heads, d_ff, num_layers, dropout, norm_first=True
        )
        self.output = nn.Linear(d_model, num_classes)

    def forward(
        self, images: Float[Tensor, "batch height width"]
    ) -> Float[Tensor, "batch classes"]:
        _require_images(images, self.image_size)
        patches = image_patches(images, self.patch_size)
        x = self.position(self.embedding(patches))  # (batch, patches, d_model)
        return self.output(self.encoder(x).mean(dim=1))
