//! The functions of Dovetail that every message passes. The function marked `@twin` in `src/dovetail`, of the same
//! name, does the same in Python and says what it means; tests hold both equal. Bytes come from the network and from
//! files that somebody may have changed: every read is checked against its bounds, and there is no unsafe code.
#![deny(unsafe_code)]

mod addresses;
mod commit;
mod hashing;
mod msgpack;
mod stored;
mod wire;

use pyo3::prelude::*;

/// Raised whenever a signature or a meaning changes; the Python side takes only the version it knows.
const VERSION: u32 = 1;

#[pymodule]
fn dovetail_fast(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", VERSION)?;
    module.add_function(wrap_pyfunction!(commit::encode_commit, module)?)?;
    module.add_function(wrap_pyfunction!(hashing::hash_entries, module)?)?;
    module.add_function(wrap_pyfunction!(hashing::fold, module)?)?;
    module.add_function(wrap_pyfunction!(hashing::address_of, module)?)?;
    module.add_function(wrap_pyfunction!(hashing::crc32, module)?)?;
    module.add_function(wrap_pyfunction!(stored::hash_runs, module)?)?;
    module.add_function(wrap_pyfunction!(addresses::encode_buckets, module)?)?;
    module.add_class::<addresses::AddressFilter>()?;
    module.add_function(wrap_pyfunction!(wire::encode_frames, module)?)?;
    module.add_class::<wire::Template>()
}
