//! Content messages of a swarm, as they come from the network.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use sha2::{Digest, Sha256};

/// Indicator, opcode and version.
const HEAD: [u8; 3] = [0x79, 0x10, 5];
const TIME_AT: usize = 11;
const TIME_HIGH_AT: usize = 13;
const TIME_HIGH_BYTES: usize = 4;
const FIXED_BYTES: usize = 20;
const MAX_BYTES: usize = 8 * 1408 - 8;
const COUNT_MASK: u8 = 0x07;
const MAX_REFERENCES: usize = 4;
const REFERENCE_BYTES: usize = 10;
const REFERENCE_HASH_BYTES: usize = 8;

/// See `read_fields` in `src/dovetail/swarm/content.py`.
#[pyfunction]
pub fn read_fields<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Option<(u64, u16, Bound<'py, PyTuple>)>> {
    let Some((fixed, rest)) = data.split_first_chunk::<FIXED_BYTES>() else { return Ok(None) };
    let count = usize::from(fixed[FIXED_BYTES - 1] & COUNT_MASK);
    if data.len() > MAX_BYTES || !fixed.starts_with(&HEAD) || count > MAX_REFERENCES {
        return Ok(None);
    }
    let Some(references) = rest.get(..REFERENCE_BYTES * count) else { return Ok(None) };
    let time = fixed[TIME_AT..TIME_AT + 6].iter().rev().fold(0, |time, byte| time << 8 | u64::from(*byte));
    let ttl_epochs = u16::from_le_bytes([fixed[FIXED_BYTES - 3], fixed[FIXED_BYTES - 2]]);
    let hashes = references.chunks_exact(REFERENCE_BYTES).map(|edge| PyBytes::new(py, &edge[..REFERENCE_HASH_BYTES]));
    Ok(Some((time, ttl_epochs, PyTuple::new(py, hashes)?)))
}

/// The hash that must be below the work target: of a message with the high bytes of its time moved to the front.
#[pyfunction]
pub fn work_of<'py>(py: Python<'py>, data: &[u8]) -> Bound<'py, PyBytes> {
    let (head, rest) = data.split_at(data.len().min(TIME_HIGH_AT));
    let (time, rest) = rest.split_at(rest.len().min(TIME_HIGH_BYTES));
    let hash = Sha256::new().chain_update(time).chain_update(head).chain_update(rest).finalize();
    PyBytes::new(py, &hash)
}
