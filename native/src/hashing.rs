//! Leaf hashes, the Merkle tree's inner nodes, digests and checksums.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sha2::{Digest, Sha256};

pub const HASH_BYTES: usize = 32;
/// Leaf prefix, version, seq, time, message, digest and size.
pub const HEAD_BYTES: usize = 1 + 1 + 8 + 8 + 32 + 32 + 8;
const CHECK_BYTES: usize = 8;
/// From this size on it pays to release the GIL.
const LARGE_BYTES: usize = 1 << 14;
const SEQ_AT: usize = 2;
const DIGEST_AT: usize = 50;

pub fn sha256(bytes: &[u8]) -> [u8; HASH_BYTES] {
    Sha256::digest(bytes).into()
}

/// Leaf entries to be hashed: for each run the head of its first hop, and the tail of every hop.
pub struct Entries {
    pub bytes: Vec<u8>,
}

impl Entries {
    pub fn begin_run(&mut self, seq: u64, at_us: i64, message: &[u8], body: Option<([u8; 32], u64)>, hops: usize) {
        let (digest, size) = body.unwrap_or(([0; 32], 0));
        let out = &mut self.bytes;
        out.extend_from_slice(&(hops as u32).to_be_bytes());
        out.extend_from_slice(&[0, 1]);
        out.extend_from_slice(&seq.to_be_bytes());
        out.extend_from_slice(&at_us.to_be_bytes());
        out.extend_from_slice(message);
        out.extend_from_slice(&digest);
        out.extend_from_slice(&size.to_be_bytes());
    }

    pub fn add_tail(&mut self, words: &[u8], counterpart: &[u8]) {
        let out = &mut self.bytes;
        let size = words.len() + 2 + counterpart.len();
        out.extend_from_slice(&(size as u16).to_be_bytes());
        out.extend_from_slice(words);
        out.extend_from_slice(&(counterpart.len() as u16).to_be_bytes());
        out.extend_from_slice(counterpart);
    }
}

/// Stage and reason as encoded in a tail.
pub fn encode_words(stage: &str, reason: &str) -> Vec<u8> {
    let mut words = vec![stage.len() as u8];
    words.extend_from_slice(stage.as_bytes());
    words.push(reason.len() as u8);
    words.extend_from_slice(reason.as_bytes());
    words
}

pub fn hash_all(entries: &[u8]) -> Option<Vec<u8>> {
    let mut leaves = Vec::with_capacity(entries.len() / 4);
    let mut rest = entries;
    let mut entry = Vec::with_capacity(256);
    while !rest.is_empty() {
        let (count, after) = rest.split_at_checked(4)?;
        let hops = u32::from_be_bytes(count.try_into().ok()?);
        let (head, after) = after.split_at_checked(HEAD_BYTES)?;
        rest = after;
        entry.clear();
        entry.extend_from_slice(head);
        let first = u64::from_be_bytes(head[SEQ_AT..SEQ_AT + 8].try_into().ok()?);
        for offset in 0..u64::from(hops) {
            let (size, after) = rest.split_at_checked(2)?;
            let (tail, after) = after.split_at_checked(usize::from(u16::from_be_bytes(size.try_into().ok()?)))?;
            rest = after;
            if offset > 0 {
                entry[SEQ_AT..SEQ_AT + 8].copy_from_slice(&first.checked_add(offset)?.to_be_bytes());
                entry[DIGEST_AT..].fill(0);
            }
            entry.extend_from_slice(tail);
            leaves.extend_from_slice(&Sha256::digest(&entry));
            entry.truncate(HEAD_BYTES);
        }
    }
    Some(leaves)
}

/// Concatenated leaf hashes of the entries that `encode_commit` has prepared.
#[pyfunction]
pub fn hash_entries<'py>(py: Python<'py>, entries: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let leaves = py.detach(|| hash_all(entries));
    Ok(PyBytes::new(py, &leaves.ok_or_else(|| PyValueError::new_err("entries are cut off"))?))
}

/// The root of a perfect subtree, from the hashes of one of its levels.
#[pyfunction]
pub fn fold<'py>(py: Python<'py>, level: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let count = level.len() / HASH_BYTES;
    if count == 0 || count & (count - 1) != 0 || level.len() % HASH_BYTES != 0 {
        let size = level.len();
        return Err(PyValueError::new_err(format!("a perfect subtree has a power of two of hashes, got {size} bytes")));
    }
    let root = py.detach(|| {
        let mut hashes = level.to_vec();
        let mut node = [1; 1 + 2 * HASH_BYTES];
        while hashes.len() > HASH_BYTES {
            let half = hashes.len() / 2;
            for start in (0..half).step_by(HASH_BYTES) {
                node[1..].copy_from_slice(&hashes[2 * start..2 * start + 2 * HASH_BYTES]);
                hashes[start..start + HASH_BYTES].copy_from_slice(&Sha256::digest(node));
            }
            hashes.truncate(half);
        }
        hashes
    });
    Ok(PyBytes::new(py, &root))
}

/// The content address of wire bytes.
#[pyfunction]
pub fn address_of<'py>(py: Python<'py>, data: &[u8]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &sha256(data))
}

/// The checksum of a row.
#[pyfunction]
pub fn crc32(py: Python<'_>, data: &[u8]) -> u32 {
    if data.len() < LARGE_BYTES {
        crc32fast::hash(data)
    } else {
        py.detach(|| crc32fast::hash(data))
    }
}

/// The first bytes of every leaf hash, which is what the journal stores.
#[pyfunction]
pub fn checks_of<'py>(py: Python<'py>, leaves: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    if leaves.len() % HASH_BYTES != 0 {
        let size = leaves.len();
        return Err(PyValueError::new_err(format!("leaf hashes have {HASH_BYTES} bytes each, got {size} bytes")));
    }
    let mut checks = Vec::with_capacity(leaves.len() / HASH_BYTES * CHECK_BYTES);
    leaves.chunks_exact(HASH_BYTES).for_each(|leaf| checks.extend_from_slice(&leaf[..CHECK_BYTES]));
    Ok(PyBytes::new(py, &checks))
}
