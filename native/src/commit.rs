//! Encodes observations as the rows of one commit.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use pyo3::{intern, Py};

use crate::hashing::{encode_words, sha256, Entries};
use crate::msgpack::{put_array, put_binary, put_int, put_uint, NIL};

const ADDRESS_BYTES: usize = 32;
const RUN_FIELDS: usize = 5;
const MESSAGE_FIELDS: usize = 6;
const MAX_COUNTERPARTS: usize = 1 << 20;

/// Hashes an address by its first bytes: addresses are hashes already.
#[derive(Default)]
struct FirstBytes(u64);

impl Hasher for FirstBytes {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk::<8>() {
            self.0 = u64::from_le_bytes(*first);
        }
    }
}

type Numbers = HashMap<[u8; ADDRESS_BYTES], i64, BuildHasherDefault<FirstBytes>>;

/// A message as it will be stored in the file.
struct Stored<'py> {
    address: Bound<'py, PyBytes>,
    body_seq: Option<u64>,
    size: Option<u64>,
    digest: Option<Option<[u8; 32]>>,
    expires_us: Option<i64>,
    raw: Option<Bound<'py, PyBytes>>,
}

impl<'py> Stored<'py> {
    fn put(&self, out: &mut Vec<u8>) {
        put_array(out, MESSAGE_FIELDS);
        put_binary(out, self.address.as_bytes());
        put_or_nil(out, self.body_seq, put_uint);
        put_or_nil(out, self.size, put_uint);
        let digest = self.digest.as_ref().map(|digest| digest.as_ref().map_or(&[][..], |bytes| &bytes[..]));
        put_or_nil(out, digest, put_binary);
        put_or_nil(out, self.expires_us, put_int);
        put_or_nil(out, self.raw.as_ref().map(|raw| raw.as_bytes()), put_binary);
    }

    fn to_tuple(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let digest = self.digest.map(|digest| PyBytes::new(py, digest.as_ref().map_or(&[][..], |bytes| &bytes[..])));
        (&self.address, self.body_seq, self.size, digest, self.expires_us, self.raw.as_ref()).into_pyobject(py)
    }

    /// The digest and size that the leaf of the hop that carries it commits to.
    fn body(&self, address: &[u8; 32]) -> ([u8; 32], u64) {
        let digest = self.digest.map_or([0; 32], |digest| digest.unwrap_or(*address));
        (digest, self.size.unwrap_or(0))
    }
}

fn put_or_nil<T>(out: &mut Vec<u8>, value: Option<T>, put: impl Fn(&mut Vec<u8>, T)) {
    match value {
        None => out.push(NIL),
        Some(value) => put(out, value),
    }
}

/// A pair of stage and reason seen before: the objects, their codes, and their part of a leaf's tail.
struct Words {
    stage: Py<PyAny>,
    reason: Py<PyAny>,
    stage_code: u64,
    reason_code: u64,
    text: Vec<u8>,
}

fn find_words<'a>(
    known: &'a mut Vec<Words>,
    stage: &Bound<'_, PyAny>,
    reason: &Bound<'_, PyAny>,
) -> PyResult<&'a Words> {
    let place = known.iter().position(|words| words.stage.is(stage) && words.reason.is(reason));
    let place = match place {
        Some(place) => place,
        None => {
            let py = stage.py();
            let (reason_code, reason_text) = if reason.is_none() {
                (0, String::new())
            } else {
                (reason.getattr(intern!(py, "code"))?.extract()?, reason.extract::<String>()?)
            };
            known.push(Words {
                stage_code: stage.getattr(intern!(py, "code"))?.extract()?,
                reason_code,
                text: encode_words(&stage.extract::<String>()?, &reason_text),
                stage: stage.clone().unbind(),
                reason: reason.clone().unbind(),
            });
            known.len() - 1
        }
    };
    Ok(&known[place])
}

/// The digest of bytes that are not kept; the inner None means that it equals the address.
fn known_digest(observation: &Bound<'_, PyAny>, address: &[u8; 32]) -> PyResult<Option<Option<[u8; 32]>>> {
    let digest: Option<Bound<'_, PyBytes>> = observation.getattr(intern!(observation.py(), "digest"))?.extract()?;
    let Some(digest) = digest else { return Ok(None) };
    let bytes = digest.as_bytes();
    let digest = <[u8; 32]>::try_from(bytes)
        .map_err(|_| PyValueError::new_err(format!("a digest has {ADDRESS_BYTES} bytes, got {}", bytes.len())))?;
    Ok(Some(Some(digest).filter(|digest| digest != address)))
}

fn to_bytes<'py>(value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    match value.cast_into::<PyBytes>() {
        Ok(bytes) => Ok(bytes),
        Err(error) => {
            let value = error.into_inner();
            Ok(value.py().get_type::<PyBytes>().call1((value,))?.cast_into()?)
        }
    }
}

/// See `encode_commit` in `src/dovetail/journal/encoding.py`.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn encode_commit<'py>(
    py: Python<'py>,
    observations: &Bound<'py, PyList>,
    recalled: &Bound<'py, PyDict>,
    names: &Bound<'py, PyDict>,
    new_names: &Bound<'py, PyDict>,
    next_message: u64,
    size: u64,
    last_at_us: i64,
    hashes_bytes: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let count = observations.len();
    let mut runs = Vec::with_capacity(16 * count + 8);
    put_array(&mut runs, count);
    let mut entries = Entries { bytes: Vec::with_capacity(160 * count) };
    let mut words_met: Vec<Words> = Vec::new();
    let mut numbers: Numbers = Numbers::with_capacity_and_hasher(count, BuildHasherDefault::default());
    let mut messages: Vec<Stored<'py>> = Vec::with_capacity(count);
    let mut bodies: Vec<(i64, Stored<'py>)> = Vec::new();
    let mut unknown: Vec<Bound<'py, PyString>> = Vec::new();
    let mut packed: Vec<u8> = Vec::new();
    let mut body_bytes = 0u64;
    let mut end = size;
    let mut at_us = last_at_us;
    let mut first_at_us = last_at_us;
    let has_recalled = !recalled.is_empty();
    for (place, observation) in observations.iter().enumerate() {
        let own_at_us: i64 = observation.getattr(intern!(py, "at_us"))?.extract()?;
        if place == 0 {
            at_us = at_us.max(own_at_us);
            first_at_us = at_us;
        }
        let after_us = own_at_us.checked_sub(at_us).unwrap_or(0).max(0);
        at_us += after_us;
        let address_object = observation.getattr(intern!(py, "message"))?.cast_into::<PyBytes>()?;
        let Ok(address) = <[u8; ADDRESS_BYTES]>::try_from(address_object.as_bytes()) else {
            let size = address_object.as_bytes().len();
            return Err(PyValueError::new_err(format!("an address has {ADDRESS_BYTES} bytes, got {size}")));
        };
        let mut known = numbers.get(&address).copied();
        if known.is_none() && has_recalled {
            known = recalled.get_item(&address_object)?.map(|number| number.extract()).transpose()?;
        }
        let mut body = None;
        let message_id = match known {
            Some(number) if number > 0 => number,
            _ => {
                let raw = observation.getattr(intern!(py, "raw"))?;
                let raw = if raw.is_none() { None } else { Some(to_bytes(raw)?) };
                let own_size: Option<u64> = observation.getattr(intern!(py, "size"))?.extract()?;
                let has_body = raw.is_some() || own_size.is_some();
                if let (Some(number), false) = (known, has_body) {
                    -number
                } else {
                    let is_whole = own_size.is_none();
                    let digest = match &raw {
                        Some(_) if hashes_bytes && is_whole && known.is_none() => Some(None),
                        Some(raw) => Some(Some(sha256(raw.as_bytes())).filter(|digest| *digest != address)),
                        None if has_body => known_digest(&observation, &address)?,
                        None => None,
                    };
                    let expires_us = match raw {
                        Some(_) => observation.getattr(intern!(py, "expires_us"))?.extract()?,
                        None => None,
                    };
                    let stored = Stored {
                        address: address_object.clone(),
                        body_seq: has_body.then_some(end),
                        size: own_size.or_else(|| raw.as_ref().map(|raw| raw.as_bytes().len() as u64)),
                        digest,
                        expires_us,
                        raw,
                    };
                    body_bytes += stored.size.unwrap_or(0);
                    body = has_body.then(|| stored.body(&address));
                    let number = match known {
                        None => {
                            messages.push(stored);
                            next_message as i64 + messages.len() as i64 - 1
                        }
                        Some(number) => {
                            let number = -number;
                            match usize::try_from(number - next_message as i64) {
                                Ok(own) if own < messages.len() => messages[own] = stored,
                                _ => bodies.push((number, stored)),
                            }
                            number
                        }
                    };
                    numbers.insert(address, if has_body { number } else { -number });
                    number
                }
            }
        };
        let stage = observation.getattr(intern!(py, "stage"))?;
        let reason = observation.getattr(intern!(py, "reason"))?;
        let words = find_words(&mut words_met, &stage, &reason)?;
        put_array(&mut runs, RUN_FIELDS);
        put_int(&mut runs, message_id);
        put_uint(&mut runs, words.stage_code);
        put_uint(&mut runs, words.reason_code);
        put_int(&mut runs, after_us);
        let counterparts = observation.getattr(intern!(py, "counterparts"))?.cast_into::<PyTuple>()?;
        let hops = counterparts.len();
        if hops > MAX_COUNTERPARTS {
            let text = format!("{hops} counterparts, expected at most {MAX_COUNTERPARTS}");
            return Err(PyValueError::new_err(text));
        }
        entries.begin_run(end, at_us, &address, body, hops.max(1));
        if hops == 0 {
            entries.add_tail(&words.text, b"");
            runs.push(NIL);
        }
        packed.clear();
        for name in counterparts.iter() {
            let name = name.cast_into::<PyString>()?;
            let number = match names.get_item(&name)? {
                Some(number) => Some(number),
                None => new_names.get_item(&name)?,
            };
            match number {
                Some(number) => packed.extend_from_slice(&number.extract::<u32>()?.to_le_bytes()),
                None => {
                    unknown.push(name);
                    continue;
                }
            }
            entries.add_tail(&words.text, name.to_str()?.as_bytes());
        }
        if hops == 1 {
            if let Some(number) = packed.first_chunk::<4>() {
                put_uint(&mut runs, u64::from(u32::from_le_bytes(*number)));
            }
        } else if hops > 1 {
            put_binary(&mut runs, &packed);
        }
        end += hops.max(1) as u64;
    }
    if !unknown.is_empty() {
        return Ok(PyList::new(py, unknown)?.into_any());
    }
    let seen = PyDict::new(py);
    for message in &messages {
        seen.set_item(&message.address, number_of(&numbers, message))?;
    }
    let changed = PyDict::new(py);
    for (number, stored) in &bodies {
        seen.set_item(&stored.address, number_of(&numbers, stored))?;
        changed.set_item(number, stored.to_tuple(py)?)?;
    }
    let mut rows = Vec::new();
    if !messages.is_empty() {
        rows.reserve(body_bytes as usize + 64 * messages.len() + 8);
        put_array(&mut rows, messages.len());
        messages.iter().for_each(|message| message.put(&mut rows));
    }
    let addresses = PyList::new(py, messages.iter().map(|message| &message.address))?;
    let expires_us = messages.iter().filter_map(|message| message.expires_us).min();
    let encoded = (
        (end, first_at_us, at_us, body_bytes),
        PyBytes::new(py, &runs),
        PyBytes::new(py, &rows),
        addresses,
        seen,
        changed,
        expires_us,
        PyBytes::new(py, &entries.bytes),
    );
    Ok(encoded.into_pyobject(py)?.into_any())
}

fn number_of(numbers: &Numbers, message: &Stored<'_>) -> Option<i64> {
    message.address.as_bytes().first_chunk::<ADDRESS_BYTES>().and_then(|address| numbers.get(address)).copied()
}
