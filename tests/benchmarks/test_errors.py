from __future__ import annotations

import pytest
import tensorflow as tf

from benchmarks.data.pipeline import input_pipeline
from benchmarks.errors import BenchError, did_you_mean, headline, lack_of_memory, nccl_advice


def test_the_headline_of_an_error_is_what_was_wrong() -> None:
    assert headline(ValueError("what\nelse")) == "what"
    assert headline(ValueError()) == ""
    several = "2 root error(s) found.\n  (0) INVALID_ARGUMENT: it broke\n\t [[{{node Assert}}]]\n  (1) and so on"
    assert headline(ValueError(several)) == "INVALID_ARGUMENT: it broke"
    assert headline(ValueError(f"From /job:worker/replica:0/task:1:\n{several}")) == "INVALID_ARGUMENT: it broke"


def test_the_headline_follows_all_places_where_operations_were_made() -> None:
    made = "Detected at node '{0}' defined at (most recent call last):\n  File ...\nNode: '{0}'\n"
    for places in ("", made.format("a"), made.format("a") + made.format("b")):
        message = f"Graph execution error:\n\n{places}Socket closed\n\t [[{{{{node a}}}}]]"
        assert headline(ValueError(message)) == "Socket closed"


def test_the_headline_of_what_a_session_raises() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        encoded = tf.compat.v1.placeholder(tf.string, [])
        broken = tf.io.decode_jpeg(encoded)
        run = session.make_callable(broken, [encoded])
        for call in (lambda: session.run(broken, {encoded: b"no image"}), lambda: run(b"no image")):
            with pytest.raises(tf.errors.OpError) as raised:
                call()
            assert "Unknown image file format" in headline(raised.value)


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"), "Out of memory"),
        (tf.errors.ResourceExhaustedError(None, None, "out/graph.pb; No space left on device"), ""),
        (tf.errors.ResourceExhaustedError(None, None, "train-00007-of-01024; Too many open files"), ""),
        (MemoryError(), "Out of memory"),
        (tf.errors.NotFoundError(None, None, "No algorithm worked!  Error messages:"), "Probably out of memory"),
        (tf.errors.UnknownError(None, None, "CUDNN_STATUS_ALLOC_FAILED in cudnn_dnn.cc"), "Probably out of memory"),
        (tf.errors.InternalError(None, None, "cublas: CUBLAS_STATUS_NOT_INITIALIZED"), "Probably out of memory"),
        (tf.errors.InternalError(None, None, "CUDA_ERROR_OUT_OF_MEMORY"), "Probably out of memory"),
        (tf.errors.InternalError(None, None, "GPU:0 failed. Status: out of memory"), "Probably out of memory"),
        (tf.errors.InternalError(None, None, "Dst tensor is not initialized."), "Probably out of memory"),
        (tf.errors.InternalError(None, None, "CUDNN_STATUS_EXECUTION_FAILED"), ""),
        (tf.errors.NotFoundError(None, None, "No file"), ""),
    ],
)
def test_a_lack_of_memory_is_recognised_in_the_errors_of_cudas_libraries(error: Exception, what: str) -> None:
    assert lack_of_memory(error) == what


@pytest.mark.parametrize(
    ("what", "advised"),
    [
        ("unhandled cuda error (run with NCCL_DEBUG=INFO for details)", "--gpu_memory_frac=0.9"),
        ("unhandled system error (run with NCCL_DEBUG=INFO for details)", "--ipc=host"),
        ("Unable to load NCCL library. Multi-GPU collectives will not work.", "nvidia-nccl-cu12"),
    ],
)
def test_what_nccl_is_refused_gets_an_advice_of_its_own(what: str, advised: str) -> None:
    message = f"NCCL: {what}. Set NCCL_DEBUG=WARN for detail."
    error = tf.errors.InternalError(None, None, message)
    assert not lack_of_memory(error)
    explained = input_pipeline.RunInput().translate(error, num_classes=10)
    assert isinstance(explained, BenchError) and message[:20] in str(explained)
    assert advised in str(explained) and "batch" not in str(explained)
    assert nccl_advice(ValueError("NCCL: invalid usage")) == ""


def test_what_xla_cannot_compile_gets_an_advice() -> None:
    message = "Detected unsupported operations when trying to compile graph train[] on XLA_CPU_JIT: Rotate."
    error = tf.errors.InvalidArgumentError(None, None, message)
    assert str(input_pipeline.RunInput().translate(error, num_classes=10)) == f"{message[:-1]}: omit --xla."


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("vgg61", "vgg16"),
        ("inceptionv3", "inception3"),
        ("mirrored", "mirrored_strategy"),
        ("ResNet", "resnet20"),
        ("googlenet", None),
        ("precision", None),
        ("mi", None),
    ],
)
def test_only_a_near_word_is_suggested(word: str, nearest: str | None) -> None:
    known = ("alexnet", "inception3", "resnet20_v2", "resnet20", "vgg16", "mirrored_strategy", "version")
    assert did_you_mean(word, known) == (f" Did you mean '{nearest}'?" if nearest else "")
