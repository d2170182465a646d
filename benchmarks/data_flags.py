"""The flags about images, and those of the verb `data`."""

from __future__ import annotations

from benchmarks.datasets import corruption
from benchmarks.datasets.catalog import DATA_SETS, SYNTHETIC, SYNTHETIC_HOST
from benchmarks.datasets.options import RESIZE_METHODS, ROUND_ROBIN
from benchmarks.flag_parsing import Flag, Groups

IMAGE_FLAGS: Groups = {
    "Data": (
        Flag("data_dir", str, "where images are read from (default: they are synthetic)"),
        Flag(
            "data_name",
            str,
            "which data set (default: the model's with --data_dir, else synthetic); synthetic images are made once on "
            "the devices, synthetic_host ones on the host, so that the way to the device is in the measurement",
            (*DATA_SETS, SYNTHETIC, SYNTHETIC_HOST),
        ),
        Flag("data_split", str, "which part of the data set (default train)", ("train", "validation")),
        Flag(
            "on_bad_record",
            str,
            "fail: the run ends and names file, record and reason (default); skip: it goes on and counts them",
            ("fail", "skip"),
        ),
        Flag(
            "pipelined_input",
            bool,
            "the next step's images are brought to the device while this one computes (default where any are read)",
        ),
    ),
    "How images are prepared": (
        Flag(
            "image_crop",
            str,
            "distorted: a random part, flipped at random (default); central: the middle (default of --forward_only)",
            ("distorted", "central"),
        ),
        Flag("fuse_decode_and_crop", bool, "decode only the part that is kept (default)"),
        Flag("decode_scaling", bool, "decode a part of twice the size or more at half the size, and so on"),
        Flag(
            "resize_method",
            str,
            "default bilinear; round_robin takes them in turn",
            (*RESIZE_METHODS, ROUND_ROBIN),
        ),
        Flag("distortions", bool, "random brightness, saturation, hue and contrast (default: none)"),
        Flag("distort_color_in_yiq", bool, "saturation and hue of --distortions in YIQ (default), else in HSV"),
    ),
    "How files are read": (
        Flag("datasets_parallel_interleave_cycle_length", int, "files read at a time (default 10)"),
        Flag("datasets_shuffle_records", int, "records that wait to be drawn from (default 256)"),
        Flag("datasets_parallel_calls", int, "images prepared at a time (default 0: cores + 1; -1: tf.data chooses)"),
        Flag("datasets_use_prefetch", bool, "batches are made before they are asked for (default)"),
        Flag("datasets_prefetch_buffer_size", int, "batches per device that wait to be fetched (default 2)"),
        Flag("datasets_num_private_threads", int, "threads of the pipeline alone (default 0: the session's)"),
        Flag(
            "datasets_autotune_cpu_budget",
            int,
            "with --datasets_parallel_calls=-1: cores that tf.data may plan with (default 0: all)",
        ),
        Flag("datasets_sloppy_parallel_interleave", bool, "take what is ready first; runs then differ"),
        Flag("datasets_use_caching", bool, "keep all records in memory, as they are on disk"),
        Flag("datasets_repeat_cached_sample", bool, "use the first record again and again: no reading"),
    ),
}

DATA_FLAGS: Groups = {
    "make-imagenet DIR, make-cifar10 DIR, make-mnist DIR: write a fake data set": (
        Flag("train_images", int, "training images (default 512 photos, 2000 small images)"),
        Flag("validation_images", int, "validation images (default 0)"),
        Flag("images_per_shard", int, "photos in one file (default 64, convert 1280)"),
        Flag("seed", int, "equal seeds write equal files (default 1)"),
        Flag("overwrite", bool, "replace files that are there"),
        Flag("corrupt", str, "damage one record, or the file that holds it", corruption.KINDS),
        Flag("python", bool, "make-cifar10: the version for Python (default: the binary one)"),
        Flag("gzip", bool, "make-mnist: compressed files"),
    ),
    "convert SRC DIR: folders of photos, or tar archives, to TFRecords; goes on where it was interrupted": (
        Flag("resize", int, "make larger photos smaller: pixels of the shorter side"),
    ),
    "check DIR: walk every record and list what is wrong": (
        Flag("data_name", str, "which data set (default imagenet)", tuple(DATA_SETS)),
        Flag("data_split", str, "convert, check: which part (default train)", ("train", "validation")),
        Flag("decode", bool, "decode every photo, too"),
    ),
}
