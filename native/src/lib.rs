//! The functions of Dovetail that run for every message. The function of the same name marked `@twin` in `src/dovetail`
//! does the same in Python and documents it; tests check that both agree. Bytes come from the network and from files
//! that anyone may have changed: every read is bounds-checked, and there is no unsafe code.
#![deny(unsafe_code)]

mod addresses;
mod commit;
mod content;
mod hashing;
mod msgpack;
mod stored;
mod wire;
mod won;
mod won_message;

use pyo3::prelude::*;

/// Incremented whenever a signature or its meaning changes; the Python side accepts only the version it knows.
const VERSION: u32 = 6;

#[pymodule]
fn dovetail_fast(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", VERSION)?;
    module.add_function(wrap_pyfunction!(commit::encode_commit, module)?)?;
    module.add_function(wrap_pyfunction!(hashing::hash_entries, module)?)?;
    module.add_function(wrap_pyfunction!(hashing::fold, module)?)?;
    module.add_function(wrap_pyfunction!(hashing::address_of, module)?)?;
    module.add_function(wrap_pyfunction!(hashing::crc32, module)?)?;
    module.add_function(wrap_pyfunction!(hashing::checks_of, module)?)?;
    module.add_class::<stored::HopHasher>()?;
    module.add_function(wrap_pyfunction!(stored::survey_messages, module)?)?;
    module.add_function(wrap_pyfunction!(content::read_fields, module)?)?;
    module.add_function(wrap_pyfunction!(content::work_of, module)?)?;
    module.add_function(wrap_pyfunction!(addresses::encode_buckets, module)?)?;
    module.add_class::<addresses::AddressFilter>()?;
    module.add_function(wrap_pyfunction!(wire::encode_frames, module)?)?;
    module.add_class::<wire::Template>()?;
    module.add_class::<won::BlockReader>()?;
    module.add_class::<won::BlockWriter>()?;
    module.add_class::<won_message::MessageReader>()?;
    module.add_function(wrap_pyfunction!(won::encode_graphs, module)?)?;
    module.add_function(wrap_pyfunction!(won::digest_graphs, module)?)?;
    module.add_function(wrap_pyfunction!(won::won_uri, module)?)
}
