"""Decodes, crops, resizes, flips and distorts one photo: a JPEG, a PNG, or pixels of `data convert --decoded`."""

from __future__ import annotations

import functools

import tensorflow as tf

from benchmarks.data.options import RESIZE_METHODS, ROUND_ROBIN, InputOptions
from benchmarks.data.sources.jpeg_header import MOST_PIXELS, PNG_SIGNATURE
from models.model_spec import NUM_CHANNELS

# Evaluation takes the central 224 of 256 pixels, as Simonyan and Zisserman (arXiv:1409.1556) and most others do.
_EVALUATION_MARGIN = 1.145
_SCALES = (1, 2, 4, 8)  # the scales that libjpeg supports in the DCT

# Each random choice about a photo has its own stream.
_CROP, _FLIP, _BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(6)
_MAX_BRIGHTNESS = 32.0 / 255.0
_CONTRAST_RANGE = (0.5, 1.5)
_SATURATION_RANGE = (0.5, 1.5)
_MAX_HUE = 0.2  # of a full turn

# Bicubic interpolation overshoots 0..255 at edges.
_OVERSHOOTING = ("bicubic", ROUND_ROBIN)

# NTSC; rows are Y, I, Q. Source: Recommendation ITU-R BT.470, in the common rounding.
_RGB_TO_YIQ = ((0.299, 0.587, 0.114), (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))


def decode(
    encoded: tf.Tensor, boxes: tf.Tensor, seed: tf.Tensor, size: int, options: InputOptions, png_too: bool = False
) -> tf.Tensor:
    """Decodes the part of a photo that the crop keeps: [height, width, 3], uint8.

    Args:
        encoded: the JPEG, or with `png_too` a PNG, which is decoded whole; a scalar.
        boxes: [1, boxes, 4], ymin, xmin, ymax, xmax in 0..1; without boxes, the whole photo counts as one.
        seed: [2], int64, of this photo in this epoch.
        size: height and width after resizing, pixels.
        options: crop, fuse_decode_and_crop and decode_scaling apply.
        png_too: looks which one it is, for 7 % of the time that a JPEG takes.
    """

    def decode_png() -> tf.Tensor:
        # The first chunk begins at byte 16, with width and height.
        sides = tf.io.decode_raw(tf.strings.substr(encoded, 16, 8), tf.int32, little_endian=False)
        with tf.control_dependencies([_require_sound_size(sides)]):
            image = tf.io.decode_png(encoded, channels=NUM_CHANNELS)
        return crop_decoded(image, boxes, seed, options)

    def decode_jpeg() -> tf.Tensor:
        shape = tf.io.extract_jpeg_shape(encoded)
        with tf.control_dependencies([_require_sound_size(shape[:2])]):
            if not options.fuse_decode_and_crop:
                return crop_decoded(tf.io.decode_jpeg(encoded, channels=NUM_CHANNELS), boxes, seed, options)
            shape = tf.identity(shape)
        part = window(shape, boxes, seed, options)
        if not options.decode_scaling:
            return tf.io.decode_and_crop_jpeg(encoded, part, channels=NUM_CHANNELS)
        return _scaled(encoded, part, size)

    if not png_too:
        return decode_jpeg()
    is_png = tf.equal(tf.strings.substr(encoded, 0, len(PNG_SIGNATURE)), PNG_SIGNATURE)
    return tf.cond(is_png, decode_png, decode_jpeg)


def decode_stored(stored: tf.Tensor, height: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Returns a photo of stored pixels, [height, width, 3], uint8.

    Args:
        stored: the pixels as bytes, row by row, a scalar.
        height: scalar, int64, as a record states it.
        width: as height. Fails if they are not the size of `stored`, so they cannot take more memory.
    """
    # A side below 1 would be a wildcard of the reshape, or leave nothing to crop.
    has_pixels = tf.minimum(height, width) > 0
    with tf.control_dependencies([tf.raw_ops.Assert(condition=has_pixels, data=["no pixels", height, width])]):
        shape = tf.stack([height, width, NUM_CHANNELS])
    return tf.reshape(tf.io.decode_raw(stored, tf.uint8), shape)


def crop_decoded(image: tf.Tensor, boxes: tf.Tensor, seed: tf.Tensor, options: InputOptions) -> tf.Tensor:
    """Returns the part of a photo of pixels that `decode` keeps of a JPEG of its size."""
    # Taking the rows as a part of the string first, and decoding only them, is 0.02 ms of a core slower per photo.
    top, left, height, width = tf.unstack(window(tf.shape(image), boxes, seed, options))
    return tf.slice(image, [top, left, 0], [height, width, NUM_CHANNELS])


def _require_sound_size(sides: tf.Tensor) -> tf.Operation:
    # Sides of a JPEG are below 2^16, so in float32 the product of two is close enough.
    in_range = tf.reduce_prod(tf.cast(sides, tf.float32)) <= MOST_PIXELS
    return tf.raw_ops.Assert(condition=in_range, data=["photo too large", sides])


def window(shape: tf.Tensor, boxes: tf.Tensor, seed: tf.Tensor, options: InputOptions) -> tf.Tensor:
    """Returns the part of a photo of a shape, [3], that the crop keeps, [4]: top, left, height, width."""
    return _random_window(shape, boxes, seed) if options.crop == "distorted" else _central_window(shape)


def _random_window(shape: tf.Tensor, boxes: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns a random part, [4]: top, left, height, width. Source: Szegedy et al., arXiv:1409.4842, section 6."""
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        bounding_boxes=boxes,
        seed=_stream(seed, _CROP),
        min_object_covered=0.1,
        aspect_ratio_range=(0.75, 1.33),
        area_range=(0.05, 1.0),
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], extent[:2]], axis=0)


def _central_window(shape: tf.Tensor) -> tf.Tensor:
    sides = shape[:2]
    side = tf.cast(tf.math.round(tf.cast(tf.reduce_min(sides), tf.float32) / _EVALUATION_MARGIN), tf.int32)
    side = tf.maximum(side, 1)
    return tf.concat([(sides - side) // 2, [side, side]], axis=0)


def _scaled(encoded: tf.Tensor, window: tf.Tensor, size: int) -> tf.Tensor:
    """Decodes at 1/2, 1/4 or 1/8 of the size if the part is still large enough then."""
    times = tf.reduce_min(window[2:]) // size
    which = tf.reduce_sum([tf.cast(times >= scale, tf.int32) for scale in _SCALES[1:]])

    def at(scale: int) -> tf.Tensor:
        # Rounded down: the part must lie within the smaller photo, whose sides are rounded up.
        return tf.io.decode_and_crop_jpeg(encoded, window // scale, channels=NUM_CHANNELS, ratio=scale)

    return tf.switch_case(which, [lambda scale=scale: at(scale) for scale in _SCALES])


def augment(image: tf.Tensor, seed: tf.Tensor, number: tf.Tensor, size: int, options: InputOptions) -> tf.Tensor:
    """Resizes, distorts and flips a decoded photo, [height, width, 3], uint8, to [size, size, 3], uint8.

    The seed is that of `decode`. `number` is the photo's position in the stream; it decides the method of
    `round_robin`. Of the options, resize_method, crop and distortions apply.
    """
    resized = _resize(image, number, size, options.resize_method)
    if options.distortions:
        resized = 255.0 * _distort(resized / 255.0, seed, in_yiq=options.distort_color_in_yiq)
    if options.resize_method in _OVERSHOOTING:
        resized = tf.clip_by_value(resized, 0.0, 255.0)
    rounded = tf.cast(resized + 0.5, tf.uint8)
    if options.crop == "distorted":
        rounded = _flip(rounded, seed)
    return tf.ensure_shape(rounded, (size, size, NUM_CHANNELS))


# The operations of tf.image.resize.
_RESIZE = {
    "bilinear": functools.partial(tf.raw_ops.ResizeBilinear, half_pixel_centers=True),
    "nearest": functools.partial(tf.raw_ops.ResizeNearestNeighbor, half_pixel_centers=True),
    "bicubic": functools.partial(tf.raw_ops.ResizeBicubic, half_pixel_centers=True),
    "area": tf.raw_ops.ResizeArea,
}


def _resize(image: tf.Tensor, number: tf.Tensor, size: int, method: str) -> tf.Tensor:
    # TensorFlow's bilinear kernel takes 0.2 ms of a core for a float32 photo, 0.4 ms for a uint8 one;
    # tf.image.resize adds 0.06 ms to check shapes.
    pixels = tf.expand_dims(tf.cast(image, tf.float32), 0)

    def by(name: str) -> tf.Tensor:
        return tf.squeeze(_RESIZE[name](images=pixels, size=[size, size]), 0)

    if method != ROUND_ROBIN:
        return by(method)
    which = tf.cast(number % len(RESIZE_METHODS), tf.int32)
    return tf.switch_case(which, [lambda name=name: by(name) for name in RESIZE_METHODS])


def _flip(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    mirrored = tf.equal(tf.random.stateless_uniform([], _stream(seed, _FLIP), 0, 2, tf.int32), 1)
    # A slice with step -1, or tf.where between both images, takes 0.7 ms; this takes 0.01 ms.
    return tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)


def _distort(image: tf.Tensor, seed: tf.Tensor, *, in_yiq: bool) -> tf.Tensor:
    """Changes brightness, saturation, hue and contrast of an image in 0..1, each by a random amount."""
    image = tf.image.stateless_random_brightness(image, _MAX_BRIGHTNESS, _stream(seed, _BRIGHTNESS))
    if in_yiq:
        saturation = tf.random.stateless_uniform([], _stream(seed, _SATURATION), *_SATURATION_RANGE)
        hue = tf.random.stateless_uniform([], _stream(seed, _HUE), -_MAX_HUE, _MAX_HUE)
        image = _rotate_in_yiq(image, saturation, hue)
    else:
        image = tf.image.stateless_random_saturation(image, *_SATURATION_RANGE, _stream(seed, _SATURATION))
        image = tf.image.stateless_random_hue(image, _MAX_HUE, _stream(seed, _HUE))
    image = tf.image.stateless_random_contrast(image, *_CONTRAST_RANGE, _stream(seed, _CONTRAST))
    return tf.clip_by_value(image, 0.0, 1.0)


def _rotate_in_yiq(image: tf.Tensor, saturation: tf.Tensor, hue: tf.Tensor) -> tf.Tensor:
    """Scales and rotates the colour plane of YIQ: one matrix for every pixel."""
    angle = 2.0 * 3.141592653589793 * hue
    sine, cosine = saturation * tf.sin(angle), saturation * tf.cos(angle)
    one, none = tf.ones([]), tf.zeros([])
    in_plane = tf.stack([tf.stack([one, none, none]), tf.stack([none, cosine, -sine]), tf.stack([none, sine, cosine])])
    to_yiq = tf.constant(_RGB_TO_YIQ)
    matrix = tf.linalg.inv(to_yiq) @ in_plane @ to_yiq
    return tf.reshape(tf.reshape(image, (-1, NUM_CHANNELS)) @ tf.transpose(matrix), tf.shape(image))


def _stream(seed: tf.Tensor, which: int) -> tf.Tensor:
    return seed + tf.constant([0, which], tf.int64)
