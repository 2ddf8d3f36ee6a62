//! The statements of won messages: reads them from their wire layout, writes them as canonical lines and hashes those.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::hashing::sha256;

const BASE58: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
/// A limb has five digits, so that it can be shifted by 32 bits and still fits.
const LIMB_DIGITS: usize = 5;
const LIMB: u64 = 58u64.pow(LIMB_DIGITS as u32);
const BASE58_DIGITS: usize = 46;
const MULTIHASH_SHA256: [u8; 2] = [0x12, 0x20];
const LONG: &str = "^^<http://www.w3.org/2001/XMLSchema#long>";

/// The rest of `text` after its longest prefix of such bytes; None if that prefix is empty.
fn skip(text: &[u8], is_right: impl Fn(u8) -> bool) -> Option<&[u8]> {
    let count = text.iter().take_while(|byte| is_right(**byte)).count();
    (count > 0).then(|| &text[count..])
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'-')
}

/// See `IRI` in `src/dovetail/won/readers/blocks.py`.
fn is_iri(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')) else { return false };
    let rest = if let Some(rest) = inner.strip_prefix("wm:/") {
        skip(rest.as_bytes(), |byte| byte.is_ascii_alphanumeric())
    } else if let Some(rest) = inner.strip_prefix("urn:dovetail:won:") {
        skip(rest.as_bytes(), |byte| byte.is_ascii_lowercase())
    } else {
        let host = inner.strip_prefix("https://").or_else(|| inner.strip_prefix("http://"));
        host.and_then(|host| skip_place(host.as_bytes()))
    };
    match rest {
        Some([]) => true,
        Some([b'#', fragment @ ..]) => fragment.iter().all(|byte| is_word(*byte)),
        _ => false,
    }
}

/// Host, port and path.
fn skip_place(host: &[u8]) -> Option<&[u8]> {
    let mut rest = skip(host, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))?;
    if let [b':', port @ ..] = rest {
        let after = skip(port, |byte| byte.is_ascii_digit())?;
        if port.len() - after.len() > 5 {
            return None;
        }
        rest = after;
    }
    while let [b'/', path @ ..] = rest {
        match skip(path, is_word) {
            Some(after) => rest = after,
            None => return Some(path),
        }
    }
    Some(rest)
}

fn is_literal(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('"') else { return false };
    let Some((value, end)) = rest.split_once('"') else { return false };
    let is_plain = |c: char| matches!(c, ' '..='[' | ']'..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..='\u{10ffff}');
    (end.is_empty() || end == LONG) && value.chars().all(is_plain)
}

/// A graph's name and statements.
pub(crate) type Graph<'a> = (&'a str, Vec<[&'a str; 3]>);

/// See `BlockReader` in `src/dovetail/won/readers/blocks.py`.
#[pyclass(frozen)]
pub struct BlockReader {
    header: Vec<u8>,
    predicates: HashMap<String, String>,
    objects: HashMap<String, String>,
}

#[pymethods]
impl BlockReader {
    #[new]
    fn new(header: &[u8], predicates: HashMap<String, String>, objects: HashMap<String, String>) -> Self {
        BlockReader { header: header.to_vec(), predicates, objects }
    }

    fn read<'py>(&self, py: Python<'py>, data: &[u8], max_quads: usize) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(graphs) = self.parse(data, max_quads) else { return Ok(None) };
        let found = PyDict::new(py);
        for (graph, statements) in graphs {
            let statements = statements.iter().map(|[subject, predicate, object]| (subject, predicate, object));
            found.set_item(graph, PyList::new(py, statements)?)?;
        }
        Ok(Some(found))
    }
}

impl BlockReader {
    /// The graphs in order; None unless all of the data is in the layout.
    pub(crate) fn parse<'a>(&'a self, data: &'a [u8], max_quads: usize) -> Option<Vec<Graph<'a>>> {
        let text = std::str::from_utf8(data.strip_prefix(&self.header[..])?).ok()?;
        if text.is_empty() {
            return Some(Vec::new());
        }
        let mut graphs: Vec<Graph<'a>> = Vec::new();
        let mut names: HashSet<&str> = HashSet::new();
        let mut is_open = false;
        let mut subject: Option<&str> = None;
        for (number, line) in text.strip_suffix('\n')?.split('\n').enumerate() {
            if number >= max_quads {
                return None;
            }
            if !is_open {
                let graph = line.strip_suffix(" {").filter(|graph| is_iri(graph))?;
                if !names.insert(graph) {
                    return None;
                }
                graphs.push((graph, Vec::with_capacity(16)));
                is_open = true;
                continue;
            }
            let (_, group) = graphs.last_mut()?;
            if line == "}" {
                if subject.is_some() || group.is_empty() {
                    return None;
                }
                is_open = false;
                continue;
            }
            let (start, line) = line.split_once(' ')?;
            let (predicate, rest) = line.split_once(' ')?;
            let (target, is_last) = match rest.strip_suffix(" ;") {
                Some(target) => (target, false),
                None => (rest.strip_suffix(" .")?, true),
            };
            let about = match subject {
                Some(about) if start.is_empty() => about,
                None if is_iri(start) => start,
                _ => return None,
            };
            let predicate = match self.predicates.get(predicate) {
                Some(long) => long,
                None if is_iri(predicate) => predicate,
                None => return None,
            };
            let target = match self.objects.get(target) {
                Some(long) => long,
                None if is_iri(target) || is_literal(target) => target,
                None => return None,
            };
            group.push([about, predicate, target]);
            subject = (!is_last).then_some(about);
        }
        (!is_open).then_some(graphs)
    }
}

/// See `BlockWriter` in `src/dovetail/won/readers/blocks.py`.
#[pyclass(frozen)]
pub struct BlockWriter {
    header: Vec<u8>,
    predicates: HashMap<String, String>,
    objects: HashMap<String, String>,
}

#[pymethods]
impl BlockWriter {
    #[new]
    fn new(header: &[u8], predicates: HashMap<String, String>, objects: HashMap<String, String>) -> Self {
        BlockWriter { header: header.to_vec(), predicates, objects }
    }

    fn write<'py>(&self, py: Python<'py>, messages: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let mut out = self.header.clone();
        for message in messages.try_iter()? {
            let message = message?.cast_into::<PyBytes>()?;
            self.put_message(&mut out, std::str::from_utf8(message.as_bytes())?)?;
        }
        Ok(PyBytes::new(py, &out))
    }
}

impl BlockWriter {
    fn put_message(&self, out: &mut Vec<u8>, lines: &str) -> PyResult<()> {
        // Graph -> its statements so far and the subject of the last one.
        let mut blocks: BTreeMap<&str, (String, &str)> = BTreeMap::new();
        for line in lines.split_terminator('\n') {
            let Some([subject, predicate, object, graph]) = split_line(line) else {
                return Err(PyValueError::new_err("not a line of N-Quads with a graph"));
            };
            let (block, last) = blocks.entry(graph).or_default();
            if *last == subject {
                block.push_str(" ;\n ");
            } else {
                block.push_str(if block.is_empty() { "" } else { " .\n" });
                block.push_str(subject);
                block.push(' ');
                *last = subject;
            }
            block.push_str(self.predicates.get(predicate).map_or(predicate, |short| short));
            block.push(' ');
            block.push_str(self.objects.get(object).map_or(object, |short| short));
        }
        for (graph, (block, _)) in blocks {
            for part in [graph, " {\n", &block, " .\n}\n"] {
                out.extend_from_slice(part.as_bytes());
            }
        }
        Ok(())
    }
}

fn split_line(line: &str) -> Option<[&str; 4]> {
    let (subject, rest) = line.strip_suffix(" .")?.split_once(' ')?;
    let (predicate, rest) = rest.split_once(' ')?;
    let (object, graph) = rest.rsplit_once(' ')?;
    Some([subject, predicate, object, graph])
}

/// Canonical lines, concatenated in any order.
pub(crate) struct Lines {
    bytes: Vec<u8>,
    places: Vec<(Range<usize>, bool)>,
}

impl Lines {
    pub(crate) fn new() -> Self {
        Lines { bytes: Vec::with_capacity(4096), places: Vec::with_capacity(32) }
    }

    /// Writes the lines of graphs, with names replaced.
    fn write(graphs: &Bound<'_, PyAny>, names: Option<&Renaming>, apart: &str) -> PyResult<Self> {
        let mut lines = Lines::new();
        for each in graphs.try_iter()? {
            let (graph, statements): (Bound<'_, PyString>, Bound<'_, PyAny>) = each?.extract()?;
            for statement in statements.try_iter()? {
                let [subject, predicate, object]: [Bound<'_, PyString>; 3] = statement?.extract()?;
                let terms = [subject.to_str()?, predicate.to_str()?, object.to_str()?];
                lines.put_graph(graph.to_str()?, [terms].into_iter(), names, apart);
            }
        }
        lines.sort();
        Ok(lines)
    }

    /// Adds the lines of a graph, with names replaced; for each line records whether it is in the graph `apart`.
    pub(crate) fn put_graph<'a>(
        &mut self,
        graph: &str,
        statements: impl Iterator<Item = [&'a str; 3]>,
        names: Option<&Renaming>,
        apart: &str,
    ) {
        let mut name = Vec::with_capacity(graph.len());
        put_term(&mut name, graph, names);
        let is_apart = name == apart.as_bytes();
        for statement in statements {
            let start = self.bytes.len();
            for (place, term) in statement.into_iter().enumerate() {
                put_term(&mut self.bytes, term, names.filter(|_| place != 1));
                self.bytes.push(b' ');
            }
            self.bytes.extend_from_slice(&name);
            self.bytes.extend_from_slice(b" .");
            self.places.push((start..self.bytes.len(), is_apart));
        }
    }

    pub(crate) fn sort(&mut self) {
        let Lines { bytes, places } = self;
        places.sort_unstable_by(|(one, _), (other, _)| bytes[one.clone()].cmp(&bytes[other.clone()]));
        places.dedup_by(|(one, _), (other, _)| bytes[one.clone()] == bytes[other.clone()]);
    }

    pub(crate) fn join(&self, with_apart: bool) -> Vec<u8> {
        let mut joined = Vec::with_capacity(self.bytes.len() + self.places.len());
        for (place, _) in self.places.iter().filter(|(_, is_apart)| with_apart || !is_apart) {
            joined.extend_from_slice(&self.bytes[place.clone()]);
            joined.push(b'\n');
        }
        joined
    }

    /// The digests of all lines, and of those outside `apart`.
    pub(crate) fn digests(&self) -> ([u8; 32], [u8; 32]) {
        (sha256(&self.join(true)), sha256(&self.join(false)))
    }
}

/// `<old>` and `<old#x>` become `<new>` and `<new#x>`.
pub(crate) struct Renaming<'a> {
    pub(crate) old: &'a str,
    pub(crate) new: &'a str,
}

fn put_term(out: &mut Vec<u8>, term: &str, names: Option<&Renaming>) {
    let renamed = names.and_then(|names| {
        let rest = term.strip_prefix('<')?.strip_prefix(names.old)?;
        (rest == ">" || rest.starts_with('#')).then_some((names.new, rest))
    });
    match renamed {
        None => out.extend_from_slice(term.as_bytes()),
        Some((new, rest)) => {
            out.push(b'<');
            out.extend_from_slice(new.as_bytes());
            out.extend_from_slice(rest.as_bytes());
        }
    }
}

/// See `encode_graphs` in `src/dovetail/won/canonical.py`.
#[pyfunction]
pub fn encode_graphs<'py>(py: Python<'py>, graphs: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    Ok(PyBytes::new(py, &Lines::write(graphs, None, "")?.join(true)))
}

/// See `digest_graphs` in `src/dovetail/won/canonical.py`.
#[pyfunction]
pub fn digest_graphs<'py>(
    py: Python<'py>,
    graphs: &Bound<'py, PyAny>,
    old: &str,
    new: &str,
    apart: &str,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let (all, rest) = Lines::write(graphs, Some(&Renaming { old, new }), apart)?.digests();
    Ok((PyBytes::new(py, &all), PyBytes::new(py, &rest)))
}

/// `wm:/` with the base58 multihash of an address.
#[pyfunction]
pub fn won_uri(address: &[u8]) -> PyResult<String> {
    let Ok(address) = <[u8; 32]>::try_from(address) else {
        return Err(PyValueError::new_err(format!("an address has 32 bytes, got {}", address.len())));
    };
    Ok(base58_uri(&address))
}

pub(crate) fn base58_uri(address: &[u8; 32]) -> String {
    let mut number = [0; 36];
    number[2..4].copy_from_slice(&MULTIHASH_SHA256);
    number[4..].copy_from_slice(address);
    let mut limbs = [0u64; BASE58_DIGITS.div_ceil(LIMB_DIGITS)];
    for word in number.chunks_exact(4) {
        let mut carry = word.iter().fold(0, |carry, byte| carry << 8 | u64::from(*byte));
        for limb in limbs.iter_mut().rev() {
            carry += *limb << 32;
            *limb = carry % LIMB;
            carry /= LIMB;
        }
    }
    let digits =
        limbs.iter().flat_map(|limb| (0..LIMB_DIGITS as u32).rev().map(move |place| limb / 58u64.pow(place) % 58));
    let text = digits.skip(LIMB_DIGITS * limbs.len() - BASE58_DIGITS).map(|digit| char::from(BASE58[digit as usize]));
    "wm:/".chars().chain(text).collect()
}
