"""Hashes and integers from bytes as native columns; Spark's own functions go through hex text.

`unhex(sha2(x, 256))` writes every digest as text and parses it back, and no Spark function reads an integer from
binary. But a Spark expression can call a static method inside the compiled code of a stage (`StaticInvoke`; Spark calls
its own the same way). So these call methods that are on every Spark's class path, without any Python.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.utils import get_active_spark_context

SHA256_BYTES = 32

_EXPRESSIONS = "org.apache.spark.sql.classic.ExpressionUtils"
_INVOKE = "org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke$"
_BINARY = "org.apache.spark.sql.types.BinaryType$"
_LONG = "org.apache.spark.sql.types.LongType$"
_CLASS = "java.lang.Class"
_NONE = "scala.None$"
NATIVE_CLASSES = (_EXPRESSIONS, _INVOKE, _BINARY, _LONG, _CLASS, _NONE)
"""The Java classes used for every such column."""


def sha256(data: Column) -> Column:
    """SHA-256 of binary, as binary."""
    return _call("org.apache.commons.codec.digest.DigestUtils", "sha256", _BINARY, data)


def big_endian(data: Column) -> Column:
    """The first eight bytes as a bigint; missing bytes count as zeros at the end."""
    return _call("org.apache.spark.unsafe.types.ByteArray", "getPrefix", _LONG, data)


def little_endian(data: Column) -> Column:
    """Up to eight bytes as a bigint, the first one lowest."""
    return _call("java.lang.Long", "reverseBytes", _LONG, big_endian(data))


def _call(java_class: str, method: str, kind: str, *arguments: Column) -> Column:
    """Call a static method on these columns; null if one of them is null."""
    jvm: Any = get_active_spark_context()._jvm
    expressions = getattr(jvm, _EXPRESSIONS)
    given = jvm.PythonUtils.toSeq([expressions.expression(column._jc) for column in arguments])
    called = _singleton(jvm, _INVOKE).apply(
        getattr(jvm, _CLASS).forName(java_class),
        _singleton(jvm, kind),
        method,
        given,
        jvm.PythonUtils.toSeq([]),
        True,
        True,
        True,
        _singleton(jvm, _NONE),
    )
    return ClassicColumn(expressions.column(called))


def _singleton(jvm: Any, scala_object: str) -> Any:
    return getattr(getattr(jvm, scala_object), "MODULE$")
