//! Won messages from the statements of their graphs: checks the closed graphs of a plain message and digests it.

use std::collections::HashMap;

use pyo3::exceptions::{PyException, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::won::{base58_uri, BlockReader, Graph, Lines, Renaming};

const MAX_MESSAGES: usize = 16;

/// What an object of the envelope or the signature must be.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Type,
    Direction,
    Envelope,
    Version,
    Graphs,
    Long,
    Iri,
    Iris,
    Socket,
    Atom,
    Plain,
}

impl Form {
    fn read(name: &str) -> PyResult<Self> {
        Ok(match name {
            "type" => Form::Type,
            "direction" => Form::Direction,
            "envelope" => Form::Envelope,
            "version" => Form::Version,
            "graphs" => Form::Graphs,
            "long" => Form::Long,
            "iri" => Form::Iri,
            "iris" => Form::Iris,
            "socket" => Form::Socket,
            "atom" => Form::Atom,
            "plain" => Form::Plain,
            _ => return Err(PyValueError::new_err(format!("{name} is not a form of objects"))),
        })
    }

    fn is_repeatable(self) -> bool {
        matches!(self, Form::Graphs | Form::Iris)
    }
}

struct Property {
    bit: u32,
    field: Py<PyString>,
    form: Form,
}

type Properties = HashMap<String, Property>;

fn read_properties(table: &Bound<'_, PyDict>) -> PyResult<Properties> {
    if table.len() > 32 {
        return Err(PyValueError::new_err("more than 32 properties"));
    }
    let read = |(number, (term, row)): (usize, (Bound<'_, PyAny>, Bound<'_, PyAny>))| {
        let (field, form): (Bound<'_, PyString>, String) = row.extract()?;
        Ok((term.extract()?, Property { bit: 1 << number, field: field.unbind(), form: Form::read(&form)? }))
    };
    table.iter().enumerate().map(read).collect()
}

struct Kind {
    value: Py<PyAny>,
    required: u32,
    allowed: u32,
}

/// See `MessageReader` in `src/dovetail/won/message.py`.
#[pyclass(frozen)]
pub struct MessageReader {
    general: Py<PyAny>,
    message: Py<PyAny>,
    blocks: Py<BlockReader>,
    envelope: Properties,
    signature: Properties,
    types: HashMap<String, Kind>,
    directions: HashMap<String, Py<PyAny>>,
    check_socket: Py<PyAny>,
    check_atom: Py<PyAny>,
    terms: Terms,
}

/// Messages, and graphs that belong to none.
type Bundle<'py> = (Vec<Bound<'py, PyAny>>, Bound<'py, PyDict>);

/// The message and its two closed graphs as terms.
struct Names {
    about: String,
    envelope: String,
    signature: String,
}

/// Terms and parts of terms, as in `vocabulary.py`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Terms {
    message: String,
    placeholder: String,
    envelope: String,
    signature: String,
    reserved: String,
    version: String,
    rdf_type: String,
    envelope_graph: String,
    attached: String,
    long: String,
}

/// The graphs of one message; each is sorted and without duplicates.
struct Parts<'a> {
    graphs: Vec<Graph<'a>>,
    contents: Vec<&'a str>,
}

#[pymethods]
impl MessageReader {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        general: Py<PyAny>,
        message: Py<PyAny>,
        blocks: Py<BlockReader>,
        envelope: &Bound<'_, PyDict>,
        signature: &Bound<'_, PyDict>,
        types: &Bound<'_, PyDict>,
        directions: HashMap<String, Py<PyAny>>,
        checks: (Py<PyAny>, Py<PyAny>),
        terms: Terms,
    ) -> PyResult<Self> {
        let (envelope, signature) = (read_properties(envelope)?, read_properties(signature)?);
        let bits = |terms: Vec<String>| {
            let bit = |term: &String| envelope.get(term).map(|property| property.bit);
            let bits: Option<Vec<u32>> = terms.iter().map(bit).collect();
            bits.map(|bits| bits.iter().sum()).ok_or_else(|| PyValueError::new_err("a property without a form"))
        };
        let read = |(term, row): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
            let (value, required, allowed): (Py<PyAny>, Vec<String>, Vec<String>) = row.extract()?;
            Ok((term.extract()?, Kind { value, required: bits(required)?, allowed: bits(allowed)? }))
        };
        let types = types.iter().map(read).collect::<PyResult<_>>()?;
        let (check_socket, check_atom) = checks;
        Ok(MessageReader {
            general,
            message,
            blocks,
            envelope,
            signature,
            types,
            directions,
            check_socket,
            check_atom,
            terms,
        })
    }

    fn read<'py>(
        &self,
        uri: &Bound<'py, PyString>,
        graphs: &Bound<'py, PyAny>,
        digests: Option<&Bound<'py, PyAny>>,
        raw: Option<&Bound<'py, PyBytes>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = uri.py();
        match self.read_graphs(uri, graphs, digests, raw) {
            Ok(Some(fields)) => self.message.bind(py).call((), Some(&fields)),
            Err(error) if !error.is_instance_of::<PyException>(py) => Err(error),
            _ => self.general.bind(py).call1((uri, graphs, digests, raw)),
        }
    }

    fn read_bundle<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        limits: (usize, usize, usize),
        known: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<Bundle<'py>>> {
        match self.read_messages(py, data, limits, known) {
            Err(error) if error.is_instance_of::<PyException>(py) => Ok(None),
            found => found,
        }
    }
}

impl MessageReader {
    /// The fields of a plain message; None or an exception if the general reader has to decide.
    fn read_graphs<'py>(
        &self,
        uri: &Bound<'py, PyString>,
        graphs: &Bound<'py, PyAny>,
        digests: Option<&Bound<'py, PyAny>>,
        raw: Option<&Bound<'py, PyBytes>>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let mut names = Vec::new();
        let mut texts: Vec<[Bound<'py, PyString>; 3]> = Vec::new();
        for (name, group) in graphs.cast::<PyDict>()?.iter() {
            let first = texts.len();
            for statement in group.try_iter()? {
                texts.push(statement?.extract()?);
            }
            names.push((name.cast_into::<PyString>()?, first..texts.len()));
        }
        let mut found = Vec::with_capacity(names.len());
        for (name, places) in &names {
            let mut group = Vec::with_capacity(places.len());
            for [subject, predicate, object] in &texts[places.clone()] {
                group.push([subject.to_str()?, predicate.to_str()?, object.to_str()?]);
            }
            found.push((name.to_str()?, group));
        }
        let Some((fields, parts)) = self.read_plain(uri.py(), uri.to_str()?, found)? else { return Ok(None) };
        match digests {
            Some(digests) => {
                let (address, digest): (Bound<'_, PyAny>, Bound<'_, PyAny>) = digests.extract()?;
                fields.set_item(intern!(uri.py(), "address"), address)?;
                fields.set_item(intern!(uri.py(), "signed_digest"), digest)?;
                fields.set_item(intern!(uri.py(), "true_uri"), uri)?;
            }
            None => self.digest(&fields, uri.to_str()?, &parts)?,
        }
        match raw {
            Some(raw) => fields.set_item(intern!(uri.py(), "raw"), raw)?,
            None => fields.set_item(intern!(uri.py(), "raw"), parts.encode(uri.py()))?,
        }
        Ok(Some(fields))
    }

    /// The messages of a dataset, and its other graphs; None or an exception if the general reader has to decide.
    fn read_messages<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        limits: (usize, usize, usize),
        known: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<Bundle<'py>>> {
        let Some(graphs) = self.blocks.get().parse(data, limits.0) else { return Ok(None) };
        let others = PyDict::new(py);
        let mut groups: Vec<(&str, Vec<Graph<'_>>)> = Vec::new();
        for (name, statements) in graphs {
            let Some(id) = name.strip_prefix(&self.terms.message).map(|_| message_of(name)) else {
                let statements = statements.iter().map(|[subject, predicate, object]| (subject, predicate, object));
                others.set_item(name, PyList::new(py, statements)?)?;
                continue;
            };
            match groups.iter().position(|(one, _)| *one == id) {
                Some(place) => groups[place].1.push((name, statements)),
                None if groups.len() < MAX_MESSAGES => groups.push((id, vec![(name, statements)])),
                None => return Ok(None),
            }
        }
        let mut messages = Vec::with_capacity(groups.len());
        for (id, group) in groups {
            let count: usize = group.iter().map(|(_, statements)| statements.len()).sum();
            if count > limits.1 || id == self.terms.placeholder {
                return Ok(None);
            }
            let uri = PyString::new(py, id);
            let before = known.map(|known| known.get_item(&uri)).transpose()?.flatten();
            let Some((fields, parts)) = self.read_plain(py, id, group)? else { return Ok(None) };
            let raw = parts.encode(py);
            match before {
                Some(before) if before.getattr(intern!(py, "raw"))?.eq(&raw)? => messages.push(before),
                _ if raw.as_bytes().len() > limits.2 => return Ok(None),
                _ => {
                    self.digest(&fields, id, &parts)?;
                    fields.set_item(intern!(py, "raw"), raw)?;
                    messages.push(self.message.bind(py).call((), Some(&fields))?);
                }
            }
        }
        Ok((!messages.is_empty()).then_some((messages, others)))
    }

    /// The fields of a plain message except its digests and bytes; None if the general reader has to decide.
    fn read_plain<'py, 'a>(
        &self,
        py: Python<'py>,
        id: &str,
        graphs: Vec<Graph<'a>>,
    ) -> PyResult<Option<(Bound<'py, PyDict>, Parts<'a>)>> {
        let names = Names {
            about: format!("<{id}>"),
            envelope: format!("<{id}{}>", self.terms.envelope),
            signature: format!("<{id}{}>", self.terms.signature),
        };
        let mut parts = Parts { graphs, contents: Vec::new() };
        for (name, group) in &mut parts.graphs {
            group.sort_unstable();
            group.dedup();
            if *name != names.envelope && *name != names.signature {
                let is_ours =
                    name.strip_prefix('<').and_then(|rest| rest.strip_prefix(id)?.strip_prefix('#')).is_some();
                if !is_ours || !group.iter().all(|statement| self.is_plain_content(statement)) {
                    return Ok(None);
                }
                parts.contents.push(name);
            }
        }
        let fields = PyDict::new(py);
        fields.set_item(intern!(py, "uri"), id)?;
        let is_right = self.read_envelope(&fields, &parts, &names)? && self.read_signature(&fields, &parts, &names)?;
        Ok(is_right.then_some((fields, parts)))
    }

    fn digest(&self, fields: &Bound<'_, PyDict>, id: &str, parts: &Parts<'_>) -> PyResult<()> {
        let py = fields.py();
        let renaming = Renaming { old: id, new: &self.terms.placeholder };
        let apart = format!("<{}{}>", self.terms.placeholder, self.terms.signature);
        let (address, digest) = parts.lines(Some(&renaming), &apart).digests();
        fields.set_item(intern!(py, "address"), PyBytes::new(py, &address))?;
        fields.set_item(intern!(py, "signed_digest"), PyBytes::new(py, &digest))?;
        fields.set_item(intern!(py, "true_uri"), base58_uri(&address))
    }

    /// See `_Parts._check_content`.
    fn is_plain_content(&self, [subject, predicate, object]: &[&str; 3]) -> bool {
        let reserved = &self.terms.reserved;
        let datatype = match object.strip_prefix('"') {
            Some(rest) => rest.rfind('"').map_or(*object, |end| &rest[end..]),
            None => object,
        };
        !subject.is_empty()
            && !object.is_empty()
            && !subject.starts_with('_')
            && !object.starts_with('_')
            && !object.starts_with("<<")
            && !predicate.starts_with(reserved)
            && !subject.starts_with(reserved)
            && !datatype.contains(reserved)
    }

    /// See `decode_envelope`.
    fn read_envelope(&self, fields: &Bound<'_, PyDict>, parts: &Parts<'_>, names: &Names) -> PyResult<bool> {
        let py = fields.py();
        let Names { about, envelope, .. } = names;
        let mut present = 0u32;
        let mut is_typed = false;
        let mut kind = None;
        let mut contents = Vec::new();
        let mut lists: Vec<(&Property, Vec<&str>)> = Vec::new();
        for [subject, predicate, object] in parts.find(envelope) {
            if *subject != about {
                if *subject != envelope || *predicate != self.terms.rdf_type || *object != self.terms.envelope_graph {
                    return Ok(false);
                }
                is_typed = true;
                continue;
            }
            let Some(property) = self.envelope.get(*predicate) else { return Ok(false) };
            if present & property.bit != 0 && !property.form.is_repeatable() {
                return Ok(false);
            }
            present |= property.bit;
            let field = property.field.bind(py);
            match property.form {
                Form::Type => {
                    let Some(named) = self.types.get(*object) else { return Ok(false) };
                    if field == "type" {
                        kind = Some(named);
                    }
                    fields.set_item(field, &named.value)?;
                }
                Form::Direction => {
                    let Some(direction) = self.directions.get(*object) else { return Ok(false) };
                    fields.set_item(field, direction)?;
                }
                Form::Envelope if *object == envelope => {}
                Form::Version if *object == self.terms.version => {}
                Form::Graphs => contents.push(*object),
                Form::Long => {
                    let Some(number) = self.read_long(object) else { return Ok(false) };
                    fields.set_item(field, number)?;
                }
                Form::Iri | Form::Socket | Form::Atom => {
                    let Some(iri) = inside_iri(object) else { return Ok(false) };
                    match property.form {
                        Form::Socket => fields.set_item(field, self.check_socket.bind(py).call1((iri,))?)?,
                        Form::Atom => fields.set_item(field, self.check_atom.bind(py).call1((iri,))?)?,
                        _ => fields.set_item(field, iri)?,
                    }
                }
                Form::Iris => {
                    let Some(iri) = inside_iri(object) else { return Ok(false) };
                    match lists.iter_mut().find(|(one, _)| one.bit == property.bit) {
                        Some((_, list)) => list.push(iri),
                        None => lists.push((property, vec![iri])),
                    }
                }
                _ => return Ok(false),
            }
        }
        let Some(kind) = kind else { return Ok(false) };
        for (property, mut list) in lists {
            list.sort_unstable();
            fields.set_item(&property.field, PyTuple::new(py, list)?)?;
        }
        let Some(mut inside) = parts.contents.iter().map(|graph| inside_iri(graph)).collect::<Option<Vec<_>>>() else {
            return Ok(false);
        };
        inside.sort_unstable();
        fields.set_item(intern!(py, "contents"), PyTuple::new(py, inside)?)?;
        Ok(is_typed
            && kind.required & !present == 0
            && present & !kind.allowed == 0
            && contents.len() == parts.contents.len()
            && contents.iter().all(|graph| parts.contents.contains(graph)))
    }

    /// See `decode_signature`.
    fn read_signature(&self, fields: &Bound<'_, PyDict>, parts: &Parts<'_>, names: &Names) -> PyResult<bool> {
        let Names { about, envelope, signature } = names;
        let mut present = 0u32;
        let mut is_attached = false;
        let mut signed = Vec::new();
        for [subject, predicate, object] in parts.find(signature) {
            if *subject != signature {
                if *subject != about || *predicate != self.terms.attached || *object != signature {
                    return Ok(false);
                }
                is_attached = true;
                continue;
            }
            let Some(property) = self.signature.get(*predicate) else { return Ok(false) };
            if present & property.bit != 0 && !property.form.is_repeatable() {
                return Ok(false);
            }
            present |= property.bit;
            let text = match property.form {
                Form::Graphs => {
                    signed.push(*object);
                    continue;
                }
                Form::Plain => inside_literal(object),
                _ => inside_iri(object),
            };
            let Some(text) = text else { return Ok(false) };
            fields.set_item(&property.field, text)?;
        }
        Ok(is_attached
            && present.count_ones() as usize == self.signature.len()
            && signed.len() == parts.contents.len() + 1
            && signed.iter().all(|graph| *graph == envelope || parts.contents.contains(graph)))
    }

    fn read_long(&self, term: &str) -> Option<i64> {
        let digits = term.strip_suffix(&self.terms.long)?.strip_prefix('"')?.strip_suffix('"')?;
        let is_short = digits.len() <= 18 && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_short.then(|| digits.parse().ok()).flatten()
    }
}

impl<'a> Parts<'a> {
    fn find(&self, graph: &str) -> &[[&'a str; 3]] {
        self.graphs.iter().find(|(name, _)| *name == graph).map_or(&[], |(_, group)| group)
    }

    fn lines(&self, names: Option<&Renaming>, apart: &str) -> Lines {
        let mut lines = Lines::new();
        for (graph, group) in &self.graphs {
            lines.put_graph(graph, group.iter().copied(), names, apart);
        }
        lines.sort();
        lines
    }

    fn encode<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.lines(None, "").join(true))
    }
}

/// `<wm:/x#y>` -> `wm:/x`
fn message_of(graph: &str) -> &str {
    let inside = graph.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')).unwrap_or(graph);
    inside.split_once('#').map_or(inside, |(id, _)| id)
}

fn inside_iri(term: &str) -> Option<&str> {
    term.strip_prefix('<')?.strip_suffix('>').filter(|text| !text.starts_with('<'))
}

fn inside_literal(term: &str) -> Option<&str> {
    term.strip_prefix('"')?.strip_suffix('"').filter(|text| !text.contains('\\'))
}
