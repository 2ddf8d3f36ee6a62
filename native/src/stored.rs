//! Reads the stored rows of a journal, which anyone may have changed: leaf hashes, and checks of message bytes.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::hashing::{encode_words, hash_all, sha256, Entries};
use crate::msgpack::{put_array, Reader, NIL};
use crate::wire::Template;

const ADDRESS_BYTES: usize = 32;
const RUN_FIELDS: usize = 5;
const MESSAGE_FIELDS: usize = 6;
const LEAST_RUN_BYTES: usize = 1 + RUN_FIELDS;
const LEAST_MESSAGE_BYTES: usize = 2 + ADDRESS_BYTES + MESSAGE_FIELDS;
const MAX_COUNTERPART_BYTES: usize = 8192;
const MAX_MESSAGES_KEPT: usize = 1 << 17;
const MAX_NAMES_KEPT: usize = 1 << 18;
const MAX_NUMBER: i128 = i64::MAX as i128;
const PURGES: u8 = 0x80;

const IS_CHANGED: u8 = 32;
const IS_OTHER_EXPIRY: u8 = 64;
const STATES_NO_EXPIRY: u8 = 128;

fn refuse(text: impl Into<String>) -> PyErr {
    PyValueError::new_err(text.into())
}

/// One message of a row; its bytes are borrowed from the row.
struct Message<'a> {
    address: [u8; ADDRESS_BYTES],
    body_seq: Option<u64>,
    size: Option<u64>,
    digest: Option<[u8; ADDRESS_BYTES]>,
    expires_us: Option<i64>,
    raw: Option<&'a [u8]>,
    /// The fields up to the digest, as stored.
    head: &'a [u8],
}

fn read_message<'a>(reader: &mut Reader<'a>) -> Option<Message<'a>> {
    if reader.array()? != MESSAGE_FIELDS {
        return None;
    }
    let count = |value: Option<i128>| match value {
        None => Some(None),
        Some(value) => (0..=MAX_NUMBER).contains(&value).then_some(Some(value as u64)),
    };
    let start = reader.rest();
    let address: [u8; ADDRESS_BYTES] = reader.binary()?.try_into().ok()?;
    let body_seq = count(reader.int_or_nil()?)?;
    let size = count(reader.int_or_nil()?)?;
    let digest = match reader.binary_or_nil()? {
        None => None,
        Some([]) => Some(address),
        Some(digest) => Some(digest.try_into().ok()?),
    };
    let head = &start[..start.len() - reader.rest().len()];
    let expires_us = match reader.int_or_nil()? {
        None => None,
        Some(value) => Some(i64::try_from(value).ok()?),
    };
    Some(Message { address, body_seq, size, digest, expires_us, raw: reader.binary_or_nil()?, head })
}

fn read_all<'a, T>(rows: &'a [u8], least: usize, read: impl Fn(&mut Reader<'a>) -> Option<T>) -> Option<Vec<T>> {
    let mut reader = Reader::new(rows);
    let count = reader.array()?;
    // every entry has at least `least` bytes, so no count can make this allocate more entries than the row can hold
    let mut found = Vec::with_capacity(count.min(rows.len() / least));
    for _ in 0..count {
        found.push(read(&mut reader)?);
    }
    reader.is_at_end().then_some(found)
}

fn read_messages(rows: &[u8]) -> Result<Vec<Message<'_>>, &'static str> {
    read_all(rows, LEAST_MESSAGE_BYTES, read_message)
        .ok_or("the messages are not in the form in which they are written")
}

/// The fields of a message that the leaves of its hops need.
struct Kept {
    address: [u8; ADDRESS_BYTES],
    body_seq: Option<u64>,
    size: u64,
    digest: [u8; ADDRESS_BYTES],
}

struct Run<'a> {
    message_id: i128,
    stage: i128,
    reason: i128,
    after_us: i128,
    one: Option<i128>,
    packed: &'a [u8],
}

impl Run<'_> {
    fn hops(&self) -> u64 {
        (self.packed.len() as u64 / 4).max(1)
    }

    fn name_count(&self) -> usize {
        usize::from(self.one.is_some()) + self.packed.len() / 4
    }

    fn name_ids(&self) -> impl Iterator<Item = i128> + '_ {
        let packed = self.packed.chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]]).into());
        self.one.into_iter().chain(packed)
    }
}

fn read_run<'a>(reader: &mut Reader<'a>) -> Option<Run<'a>> {
    if reader.array()? != RUN_FIELDS {
        return None;
    }
    let (message_id, stage, reason, after_us) = (reader.int()?, reader.int()?, reader.int()?, reader.int()?);
    let (one, packed) = match reader.int_or_binary()? {
        None => (None, &[][..]),
        Some(Ok(id)) => (Some(id), &[][..]),
        Some(Err(packed)) => (None, packed),
    };
    (packed.len() % 4 == 0).then_some(Run { message_id, stage, reason, after_us, one, packed })
}

/// A fast hash of numbers. The random seed prevents a crafted file from causing collisions.
#[derive(Clone, Copy)]
struct Seeded {
    seed: u64,
    factor: u64,
}

impl Seeded {
    fn new() -> Self {
        let chance = RandomState::new();
        Seeded { seed: chance.hash_one(1), factor: chance.hash_one(2) | 1 }
    }
}

impl BuildHasher for Seeded {
    type Hasher = Mixer;

    fn build_hasher(&self) -> Mixer {
        Mixer { state: self.seed, factor: self.factor }
    }
}

struct Mixer {
    state: u64,
    factor: u64,
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.state
    }

    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let word = word.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
            let product = u128::from(self.state ^ word) * u128::from(self.factor);
            self.state = (product as u64) ^ ((product >> 64) as u64);
        }
    }
}

type ById<T> = HashMap<i128, T, Seeded>;

/// Counterparts by number; each has an index into `texts`.
struct Names {
    places: ById<usize>,
    texts: Vec<Box<str>>,
}

/// Messages by number. Rows number them consecutively, so they are kept by row; a message is in one row at most.
struct Rows {
    by_first: BTreeMap<i128, Vec<Option<Kept>>>,
    count: usize,
}

impl Rows {
    /// The last row that starts at message `id` or before.
    fn row_before(&self, id: i128) -> Option<(i128, &[Option<Kept>])> {
        self.by_first.range(..=id).next_back().map(|(first, row)| (*first, &row[..]))
    }

    /// Add a row numbered from `first`, in place of what is known of these messages.
    fn insert(&mut self, first: i128, row: Vec<Option<Kept>>) {
        let end = first + row.len() as i128;
        while let Some((known_first, mut known)) = self.take_last_before(end, first) {
            self.count -= known.len();
            let after = known.split_off(known.len().min((end - known_first) as usize));
            known.truncate((first - known_first).max(0) as usize);
            self.put(known_first, known);
            self.put(end, after);
        }
        self.put(first, row);
    }

    /// Take out the last row that has messages below `end`, if it reaches beyond `first`.
    fn take_last_before(&mut self, end: i128, first: i128) -> Option<(i128, Vec<Option<Kept>>)> {
        let (known_first, row) = self.by_first.range(..end).next_back()?;
        let known_first = (known_first + row.len() as i128 > first).then_some(*known_first)?;
        self.by_first.remove_entry(&known_first)
    }

    fn put(&mut self, first: i128, row: Vec<Option<Kept>>) {
        if !row.is_empty() {
            self.count += row.len();
            self.by_first.insert(first, row);
        }
    }
}

/// See `HopHasher` in `src/dovetail/journal/stored.py`.
#[pyclass]
pub struct HopHasher {
    stages: HashMap<i128, String>,
    reasons: HashMap<i128, String>,
    names: Names,
    messages: Rows,
    bare: ById<Kept>,
    purged: Option<i128>,
}

/// The messages of all runs of a commit, and the counterparts of all its hops as indexes into `Names`.
struct Found<'a> {
    messages: Vec<&'a Kept>,
    names: Vec<usize>,
    name_ids: Vec<i128>,
}

type Missing = (Vec<i128>, Vec<i128>);

/// The contents of a commit, before conversion to Python objects.
struct Hashed {
    leaves: Vec<u8>,
    last_at_us: i64,
    goes_back: bool,
    body_bytes: u128,
    message_ids: Vec<i128>,
    carried: Vec<u8>,
    name_ids: Vec<i128>,
}

impl HopHasher {
    /// A message; `row` is the one that had the last, which mostly has the next.
    fn message<'a>(&'a self, id: i128, row: &mut (i128, &'a [Option<Kept>])) -> Option<&'a Kept> {
        if let Some(bare) = self.bare.get(&id) {
            return Some(bare);
        }
        if !(row.0..row.0 + row.1.len() as i128).contains(&id) {
            *row = self.messages.row_before(id)?;
        }
        row.1.get(usize::try_from(id - row.0).ok()?)?.as_ref()
    }

    /// Look up the messages and counterparts that the runs name; `Err` has those that are missing.
    fn find(&self, runs: &[Run<'_>]) -> Result<Found<'_>, Missing> {
        let mut found = Found { messages: Vec::with_capacity(runs.len()), names: Vec::new(), name_ids: Vec::new() };
        let mut missing: Missing = (Vec::new(), Vec::new());
        let mut is_met = vec![false; self.names.texts.len()];
        let mut row: (i128, &[Option<Kept>]) = (0, &[]);
        for run in runs {
            match self.message(run.message_id, &mut row) {
                Some(message) => found.messages.push(message),
                None => missing.0.push(run.message_id),
            }
            for id in run.name_ids() {
                match self.names.places.get(&id) {
                    Some(place) => {
                        found.names.push(*place);
                        if !std::mem::replace(&mut is_met[*place], true) {
                            found.name_ids.push(id);
                        }
                    }
                    None => missing.1.push(id),
                }
            }
        }
        if missing.0.is_empty() && missing.1.is_empty() {
            found.name_ids.sort_unstable();
            return Ok(found);
        }
        for ids in [&mut missing.0, &mut missing.1] {
            ids.sort_unstable();
            ids.dedup();
        }
        Err(missing)
    }

    /// Stage and reason as encoded in a leaf; None if one is unknown.
    fn words(&self, run: &Run<'_>) -> Option<Vec<u8>> {
        let stage = self.stages.get(&run.stage)?;
        let reason = if run.reason == 0 { "" } else { self.reasons.get(&run.reason)? };
        Some(encode_words(stage, reason))
    }

    fn read(
        &self,
        start: u64,
        at_us: i64,
        runs: &[Run<'_>],
        found: Found<'_>,
        first: u64,
        end: u64,
    ) -> Result<Hashed, String> {
        let mut entries = Entries { bytes: Vec::with_capacity(160 * runs.len()) };
        let mut words_met: Vec<(i128, i128, Vec<u8>)> = Vec::new();
        let mut states: Vec<(i128, u8, &Kept)> = Vec::with_capacity(runs.len());
        let (mut seq, mut last_at_us, mut goes_back) = (start, at_us, false);
        let mut hashed_from = None;
        let mut names = found.names.iter().map(|place| &self.names.texts[*place]);
        for (run, message) in runs.iter().zip(found.messages) {
            goes_back |= run.after_us < 0;
            let known = words_met.iter().position(|met| met.0 == run.stage && met.1 == run.reason);
            let words = match known {
                Some(place) => &words_met[place].2,
                None => {
                    let text =
                        self.words(run).ok_or_else(|| format!("hop {seq} has a stage or reason that is unknown"))?;
                    words_met.push((run.stage, run.reason, text));
                    &words_met[words_met.len() - 1].2
                }
            };
            last_at_us = i64::try_from(i128::from(last_at_us) + run.after_us)
                .map_err(|_| format!("hop {seq} has a time that is out of range"))?;
            let is_carried = message.body_seq == Some(seq);
            let purges = if self.purged == Some(run.stage) { PURGES } else { 0 };
            states.push((run.message_id, purges | if is_carried { run.stage as u8 } else { 0 }, message));
            let following = seq.checked_add(run.hops()).filter(|seq| i128::from(*seq) <= MAX_NUMBER);
            let following = following.ok_or("there are more hops than can be counted")?;
            let is_hashed = following > first && seq < end;
            if is_hashed {
                hashed_from.get_or_insert(seq);
                let body = is_carried.then_some((message.digest, message.size));
                entries.begin_run(seq, last_at_us, &message.address, body, run.hops() as usize);
                if run.one.is_none() && run.packed.is_empty() {
                    entries.add_tail(words, b"");
                }
            }
            for name in names.by_ref().take(run.name_count()).filter(|_| is_hashed) {
                if name.len() > MAX_COUNTERPART_BYTES {
                    return Err(format!("hop {seq} has a counterpart that is too long"));
                }
                entries.add_tail(words, name.as_bytes());
            }
            seq = following;
        }
        states.sort_by_key(|state| state.0);
        states.dedup_by(|later, kept| {
            let is_same = later.0 == kept.0;
            kept.1 |= if is_same { later.1 } else { 0 };
            is_same
        });
        let is_brought = |message: &Kept| message.body_seq.is_some_and(|body_seq| start <= body_seq && body_seq < seq);
        let brought = states.iter().map(|state| state.2).filter(|message| is_brought(message));
        let body_bytes = brought.map(|message| u128::from(message.size)).sum();
        let mut leaves = hash_all(&entries.bytes).ok_or("entries are cut off")?;
        let from = hashed_from.unwrap_or(seq);
        leaves.truncate((end.saturating_sub(from)).saturating_mul(32).min(leaves.len() as u64) as usize);
        leaves.drain(..(first.saturating_sub(from)).saturating_mul(32).min(leaves.len() as u64) as usize);
        let message_ids = states.iter().map(|state| state.0).collect();
        let carried = states.iter().map(|state| state.1).collect();
        Ok(Hashed { leaves, last_at_us, goes_back, body_bytes, message_ids, carried, name_ids: found.name_ids })
    }

    fn forget(&mut self) {
        self.bare.clear();
        if self.messages.count > MAX_MESSAGES_KEPT {
            self.messages.by_first.clear();
            self.messages.count = 0;
        }
        if self.names.texts.len() > MAX_NAMES_KEPT {
            self.names.places.clear();
            self.names.texts.clear();
        }
    }
}

fn read_texts(texts: &Bound<'_, PyDict>) -> PyResult<HashMap<i128, String>> {
    texts.iter().map(|(code, text)| Ok((code.extract()?, text.extract()?))).collect()
}

#[pymethods]
impl HopHasher {
    #[new]
    fn new(stages: &Bound<'_, PyDict>, reasons: &Bound<'_, PyDict>) -> PyResult<Self> {
        let stages = read_texts(stages)?;
        let purged = stages.iter().find(|(_, text)| *text == "purged").map(|(code, _)| *code);
        let seeded = Seeded::new();
        let names = Names { places: HashMap::with_hasher(seeded), texts: Vec::new() };
        let (messages, bare) = (Rows { by_first: BTreeMap::new(), count: 0 }, HashMap::with_hasher(seeded));
        Ok(HopHasher { stages, reasons: read_texts(reasons)?, names, messages, bare, purged })
    }

    fn add_names(&mut self, names: &Bound<'_, PyAny>) -> PyResult<()> {
        for each in names.try_iter()? {
            let (id, name): (i128, Bound<'_, PyString>) = each?.extract()?;
            let place = *self.names.places.entry(id).or_insert(self.names.texts.len());
            let text = name.to_str()?.into();
            match self.names.texts.get_mut(place) {
                Some(known) => *known = text,
                None => self.names.texts.push(text),
            }
        }
        Ok(())
    }

    fn add_messages(&mut self, py: Python<'_>, first_id: i128, rows: &[u8]) -> PyResult<usize> {
        py.detach(|| {
            let messages = read_messages(rows)?;
            let count = messages.len();
            let bare = &mut self.bare;
            let row = (first_id..).zip(messages).map(|(id, message)| {
                let (digest, size) = (message.digest.unwrap_or_default(), message.size.unwrap_or(0));
                let kept = Kept { address: message.address, body_seq: message.body_seq, size, digest };
                if kept.body_seq.is_some() {
                    return Some(kept);
                }
                bare.insert(id, kept);
                None
            });
            let row = row.collect();
            self.messages.insert(first_id, row);
            Ok::<_, &str>(count)
        })
        .map_err(refuse)
    }

    fn hash_commit<'py>(
        &mut self,
        py: Python<'py>,
        seq: u64,
        at_us: i64,
        rows: &[u8],
        first: u64,
        end: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let this = &*self;
        let read = py.detach(|| {
            let runs = read_all(rows, LEAST_RUN_BYTES, read_run)
                .ok_or("the hops are not in the form in which they are written")?;
            match this.find(&runs) {
                Ok(found) => this.read(seq, at_us, &runs, found, first, end).map(Ok),
                Err(missing) => Ok(Err(missing)),
            }
        });
        match read.map_err(refuse)? {
            Err(missing) => Ok(missing.into_pyobject(py)?.into_any()),
            Ok(hashed) => {
                self.forget();
                let found = (
                    PyBytes::new(py, &hashed.leaves),
                    hashed.last_at_us,
                    hashed.goes_back,
                    hashed.body_bytes,
                    to_list(py, &hashed.message_ids)?,
                    PyBytes::new(py, &hashed.carried),
                    to_list(py, &hashed.name_ids)?,
                );
                Ok(found.into_pyobject(py)?.into_any())
            }
        }
    }
}

/// A Python list of the numbers. Those of 64 bits, as in all valid rows, are converted faster.
fn to_list<'py>(py: Python<'py>, ids: &[i128]) -> PyResult<Bound<'py, PyList>> {
    match ids.iter().map(|id| i64::try_from(*id)).collect::<Result<Vec<_>, _>>() {
        Ok(short) => PyList::new(py, short),
        Err(_) => PyList::new(py, ids),
    }
}

/// See `survey_messages` in `src/dovetail/journal/stored.py`.
#[pyfunction]
pub fn survey_messages<'py>(py: Python<'py>, rows: &[u8], templates: Vec<Py<Template>>) -> PyResult<Bound<'py, PyAny>> {
    let (messages, states, unread, heads) = py.detach(|| survey(rows, &templates)).map_err(refuse)?;
    let addresses = PyList::new(py, messages.iter().map(|message| PyBytes::new(py, &message.address)))?;
    let earliest = messages.iter().filter_map(|message| message.expires_us).min();
    let unread: Vec<_> = unread
        .into_iter()
        .map(|place| (place, PyBytes::new(py, messages[place].raw.unwrap_or_default()), messages[place].expires_us))
        .collect();
    Ok((PyBytes::new(py, &states), addresses, earliest, unread, PyBytes::new(py, &heads)).into_pyobject(py)?.into_any())
}

/// A row of the same messages without expiries and bytes.
fn encode_heads(messages: &[Message<'_>]) -> Vec<u8> {
    let mut rows = Vec::with_capacity(64 * messages.len());
    put_array(&mut rows, messages.len());
    for message in messages {
        put_array(&mut rows, MESSAGE_FIELDS);
        rows.extend_from_slice(message.head);
        rows.extend_from_slice(&[NIL, NIL]);
    }
    rows
}

type Surveyed<'a> = (Vec<Message<'a>>, Vec<u8>, Vec<usize>, Vec<u8>);

fn survey<'a>(rows: &'a [u8], templates: &[Py<Template>]) -> Result<Surveyed<'a>, &'static str> {
    let messages = read_messages(rows)?;
    let mut states: Vec<u8> = Vec::with_capacity(messages.len());
    let mut unread: Vec<usize> = Vec::new();
    for (place, message) in messages.iter().enumerate() {
        let fields = [
            message.body_seq.is_some(),
            message.size.is_some(),
            message.digest.is_some(),
            message.raw.is_some(),
            message.expires_us.is_some(),
        ];
        let mut state = fields.iter().enumerate().fold(0, |state, (bit, is_there)| state | u8::from(*is_there) << bit);
        if let Some(raw) = message.raw {
            if sha256(raw) != message.digest.unwrap_or_default() {
                state |= IS_CHANGED;
            }
            if let Some(expires_us) = message.expires_us {
                if message.size != Some(raw.len() as u64) {
                    state |= STATES_NO_EXPIRY;
                } else {
                    match templates.iter().find_map(|template| template.get().expiry(raw)) {
                        None => unread.push(place),
                        Some(stated_us) if stated_us != expires_us => state |= IS_OTHER_EXPIRY,
                        Some(_) => {}
                    }
                }
            }
        }
        states.push(state);
    }
    let heads = encode_heads(&messages);
    Ok((messages, states, unread, heads))
}
