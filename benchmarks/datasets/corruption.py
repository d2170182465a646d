"""What a data set can be damaged with. Imports without TensorFlow."""

KINDS = ("crc", "truncated", "not_jpeg", "zero_length", "png", "cmyk", "bad_label", "cut_file")
KINDS_FOR_PIXELS = ("cut_file", "bad_label")
