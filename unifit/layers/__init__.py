"""The layers, under Keras' names and arguments."""

from unifit.layers.batch_normalization import BatchNormalization
from unifit.layers.convolution import Conv1D, Conv2D, DepthwiseConv2D
from unifit.layers.core import Dense
from unifit.layers.embedding import Embedding, Masking
from unifit.layers.pooling import AveragePooling1D, AveragePooling2D, MaxPooling1D, MaxPooling2D
from unifit.layers.regularization import Dropout
from unifit.layers.reshaping import Flatten, Permute, Reshape, UpSampling2D, ZeroPadding2D

__all__ = [
    "AveragePooling1D",
    "AveragePooling2D",
    "BatchNormalization",
    "Conv1D",
    "Conv2D",
    "Dense",
    "DepthwiseConv2D",
    "Dropout",
    "Embedding",
    "Flatten",
    "Masking",
    "MaxPooling1D",
    "MaxPooling2D",
    "Permute",
    "Reshape",
    "UpSampling2D",
    "ZeroPadding2D",
]
