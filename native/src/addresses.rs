//! The filter of addresses seen so far, and the rows of the address index.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

const ROWS: usize = 128;
const ROW_BYTES: usize = 1 << 16;
const BUCKETS: usize = 256;
const PREFIX_BYTES: usize = 8;

/// Each byte of the filter gets 3 of its bits for an address, chosen by one of the address's bytes.
const fn masks() -> [u8; 256] {
    let mut chosen = [0u8; 56];
    let mut count = 0;
    let mut a = 0;
    while a < 8 {
        let mut b = 0;
        while b < a {
            let mut c = 0;
            while c < b {
                chosen[count] = 1 << a | 1 << b | 1 << c;
                count += 1;
                c += 1;
            }
            b += 1;
        }
        a += 1;
    }
    let mut of_byte = [0u8; 256];
    let mut byte = 0;
    while byte < 256 {
        of_byte[byte] = chosen[byte % 56];
        byte += 1;
    }
    of_byte
}

const MASKS: [u8; 256] = masks();

#[pyclass]
pub struct AddressFilter {
    bits: Vec<u8>,
}

fn place_of(address: &[u8]) -> PyResult<(usize, u8)> {
    if address.len() < 4 {
        return Err(PyValueError::new_err("an address is too short"));
    }
    let block = usize::from(address[0]) << 8 | usize::from(address[1]);
    let row = usize::from(address[2]) % ROWS;
    Ok((row * ROW_BYTES + block, MASKS[usize::from(address[3])]))
}

#[pymethods]
impl AddressFilter {
    #[new]
    fn new() -> Self {
        AddressFilter { bits: vec![0; ROWS * ROW_BYTES] }
    }

    fn add(&mut self, addresses: &Bound<'_, PyList>) -> PyResult<()> {
        for address in addresses.iter() {
            let (place, mask) = place_of(address.cast::<PyBytes>()?.as_bytes())?;
            self.bits[place] |= mask;
        }
        Ok(())
    }

    fn hits(&self, addresses: &Bound<'_, PyList>) -> PyResult<Vec<usize>> {
        let mut found = Vec::new();
        for (number, address) in addresses.iter().enumerate() {
            let (place, mask) = place_of(address.cast::<PyBytes>()?.as_bytes())?;
            if self.bits[place] & mask == mask {
                found.push(number);
            }
        }
        Ok(found)
    }

    fn ask(&mut self, addresses: &Bound<'_, PyList>) -> PyResult<Vec<usize>> {
        let mut found = Vec::new();
        for (number, address) in addresses.iter().enumerate() {
            let (place, mask) = place_of(address.cast::<PyBytes>()?.as_bytes())?;
            if self.bits[place] & mask == mask {
                found.push(number);
            }
            self.bits[place] |= mask;
        }
        Ok(found)
    }
}

/// The rows of a run over messages numbered from `first_id`: entries by bucket, in the order of the numbers.
#[pyfunction]
pub fn encode_buckets<'py>(
    py: Python<'py>,
    addresses: &Bound<'py, PyList>,
    first_id: u64,
) -> PyResult<Bound<'py, PyDict>> {
    let mut buckets: Vec<Vec<u8>> = vec![Vec::new(); BUCKETS];
    for (number, address) in (first_id..).zip(addresses.iter()) {
        let address = address.cast::<PyBytes>()?.as_bytes();
        let prefix = address.get(..PREFIX_BYTES).ok_or_else(|| PyValueError::new_err("an address is too short"))?;
        let bucket = &mut buckets[usize::from(prefix[0])];
        bucket.extend_from_slice(prefix);
        bucket.extend_from_slice(&number.to_be_bytes());
    }
    let rows = PyDict::new(py);
    for (number, entries) in buckets.iter().enumerate().filter(|(_, entries)| !entries.is_empty()) {
        rows.set_item(number, PyBytes::new(py, entries))?;
    }
    Ok(rows)
}
