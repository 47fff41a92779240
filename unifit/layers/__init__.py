"""The layers, under Keras' names and arguments."""

from unifit.layers.attention import GroupQueryAttention, MultiHeadAttention
from unifit.layers.batch_normalization import BatchNormalization
from unifit.layers.convolution import Conv1D, Conv2D, DepthwiseConv2D
from unifit.layers.core import Dense, EinsumDense
from unifit.layers.elementwise import Activation, Identity, LeakyReLU, ReLU, Rescaling, Softmax
from unifit.layers.embedding import Embedding, Masking
from unifit.layers.global_pooling import (
    GlobalAveragePooling1D,
    GlobalAveragePooling2D,
    GlobalMaxPooling1D,
    GlobalMaxPooling2D,
)
from unifit.layers.merging import Add, Average, Concatenate, Maximum, Minimum, Multiply, Subtract
from unifit.layers.normalization import GroupNormalization, LayerNormalization, RMSNormalization
from unifit.layers.pooling import AveragePooling1D, AveragePooling2D, MaxPooling1D, MaxPooling2D
from unifit.layers.recurrent import GRU, LSTM
from unifit.layers.regularization import Dropout
from unifit.layers.reshaping import Flatten, Permute, Reshape, UpSampling2D, ZeroPadding2D
from unifit.layers.transposed_convolution import Conv1DTranspose, Conv2DTranspose
from unifit.layers.wrappers import Bidirectional, Lambda, TimeDistributed

__all__ = [
    "Activation",
    "Add",
    "Average",
    "AveragePooling1D",
    "AveragePooling2D",
    "BatchNormalization",
    "Bidirectional",
    "Concatenate",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Dense",
    "DepthwiseConv2D",
    "Dropout",
    "EinsumDense",
    "Embedding",
    "Flatten",
    "GRU",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "GroupNormalization",
    "GroupQueryAttention",
    "Identity",
    "LSTM",
    "Lambda",
    "LayerNormalization",
    "LeakyReLU",
    "Masking",
    "MaxPooling1D",
    "MaxPooling2D",
    "Maximum",
    "Minimum",
    "MultiHeadAttention",
    "Multiply",
    "Permute",
    "RMSNormalization",
    "ReLU",
    "Rescaling",
    "Reshape",
    "Softmax",
    "Subtract",
    "TimeDistributed",
    "UpSampling2D",
    "ZeroPadding2D",
]
