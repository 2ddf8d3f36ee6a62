//! Leaf hashes of runs as they were read from a journal, which somebody may have changed.

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::hashing::{encode_words, hash_all, Entries};

const ADDRESS_BYTES: usize = 32;
const MAX_COUNTERPART_BYTES: usize = 0xf000;

/// See `hash_runs` in `src/dovetail/journal/encoding.py`.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn hash_runs<'py>(
    py: Python<'py>,
    mut seq: u64,
    mut at_us: i64,
    runs: &Bound<'py, PyList>,
    messages: &Bound<'py, PyDict>,
    names: &Bound<'py, PyDict>,
    stages: &Bound<'py, PyDict>,
    reasons: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut entries = Entries { bytes: Vec::with_capacity(160 * runs.len()) };
    let mut missing: Vec<u64> = Vec::new();
    let mut words_met: Vec<(i64, i64, Vec<u8>)> = Vec::new();
    for run in runs.iter() {
        let message_id = run.getattr(intern!(py, "message_id"))?;
        let stage: i64 = run.getattr(intern!(py, "stage"))?.extract()?;
        let reason: i64 = run.getattr(intern!(py, "reason"))?.extract()?;
        let unreadable = || format!("hop {seq} names message {message_id}, which is missing or unreadable");
        let message = messages.get_item(&message_id)?.ok_or_else(|| PyValueError::new_err(unreadable()))?;
        let words = match words_met.iter().position(|met| met.0 == stage && met.1 == reason) {
            Some(place) => place,
            None => {
                let text = read_words(stages, reasons, stage, reason)?;
                words_met.push((stage, reason, text.ok_or_else(|| PyValueError::new_err(unreadable()))?));
                words_met.len() - 1
            }
        };
        let after_us: i64 = run.getattr(intern!(py, "after_us"))?.extract()?;
        at_us = at_us
            .checked_add(after_us)
            .ok_or_else(|| PyValueError::new_err(format!("hop {seq} has a time that is out of range")))?;
        let address = message.getattr(intern!(py, "address"))?.cast_into::<PyBytes>()?;
        let address: [u8; ADDRESS_BYTES] =
            address.as_bytes().try_into().map_err(|_| PyValueError::new_err(unreadable()))?;
        let body_seq: Option<u64> = message.getattr(intern!(py, "body_seq"))?.extract()?;
        let body = if body_seq == Some(seq) { Some(read_body(&message, &address)?) } else { None };
        let ids = read_counterparts(&run.getattr(intern!(py, "counterparts"))?)?;
        entries.begin_run(seq, at_us, &address, body, ids.len().max(1));
        let words = &words_met[words].2;
        if ids.is_empty() {
            entries.add_tail(words, b"");
        }
        for id in &ids {
            match names.get_item(id)? {
                None => missing.push(*id),
                Some(name) => {
                    let name = name.cast_into::<PyString>()?;
                    let text = name.to_str()?.as_bytes();
                    if text.len() > MAX_COUNTERPART_BYTES {
                        return Err(PyValueError::new_err(format!("hop {seq} has a counterpart that is too long")));
                    }
                    entries.add_tail(words, text);
                }
            }
        }
        seq = seq
            .checked_add(ids.len().max(1) as u64)
            .ok_or_else(|| PyValueError::new_err("there are more hops than can be counted"))?;
    }
    if !missing.is_empty() {
        return Ok(PyList::new(py, missing)?.into_any());
    }
    let leaves = py.detach(|| hash_all(&entries.bytes));
    let leaves = leaves.ok_or_else(|| PyValueError::new_err("entries are cut off"))?;
    Ok(PyBytes::new(py, &leaves).into_any())
}

/// Stage and reason as they stand in a tail; None where one of them is unknown.
fn read_words(
    stages: &Bound<'_, PyDict>,
    reasons: &Bound<'_, PyDict>,
    stage: i64,
    reason: i64,
) -> PyResult<Option<Vec<u8>>> {
    let Some(stage) = stages.get_item(stage)? else { return Ok(None) };
    if reason == 0 {
        return Ok(Some(encode_words(&stage.extract::<String>()?, "")));
    }
    let Some(reason) = reasons.get_item(reason)? else { return Ok(None) };
    Ok(Some(encode_words(&stage.extract::<String>()?, &reason.extract::<String>()?)))
}

/// Digest and size of what a message brings on the hop that carries it.
fn read_body(message: &Bound<'_, PyAny>, address: &[u8; 32]) -> PyResult<([u8; 32], u64)> {
    let py = message.py();
    let size: Option<u64> = message.getattr(intern!(py, "size"))?.extract()?;
    let digest: Option<Bound<'_, PyBytes>> = message.getattr(intern!(py, "digest"))?.extract()?;
    let digest = match digest.as_ref().map(|digest| digest.as_bytes()) {
        None => [0; 32],
        Some([]) => *address,
        Some(digest) => digest.try_into().map_err(|_| PyValueError::new_err("a digest does not have 32 bytes"))?,
    };
    Ok((digest, size.unwrap_or(0)))
}

fn read_counterparts(counterparts: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    if counterparts.is_none() {
        return Ok(Vec::new());
    }
    if let Ok(packed) = counterparts.cast::<PyBytes>() {
        let packed = packed.as_bytes();
        if packed.len() % 4 != 0 {
            return Err(PyValueError::new_err("bytes length not a multiple of item size"));
        }
        let numbers = packed.chunks_exact(4).map(|each| u32::from_le_bytes([each[0], each[1], each[2], each[3]]));
        return Ok(numbers.map(u64::from).collect());
    }
    Ok(vec![counterparts.extract()?])
}
