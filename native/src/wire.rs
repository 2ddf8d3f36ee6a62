//! What the broker does with every message: match it against its sender's template, and frame it.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySequence};

const UUID_CHARS: usize = 36;
const SECOND_BYTES: usize = 19;
const CHUNK_DATA: u8 = 2;
const CHUNK_HEAD: usize = 5;

/// The bytes of a message around its id and its expiry, up to the envelope's end.
#[pyclass(frozen)]
pub struct Template {
    head: Vec<u8>,
    id_end: usize,
    middle: Vec<u8>,
    second_end: usize,
    zone_at: usize,
    tail: Vec<u8>,
    end: usize,
    fraction_us: i64,
}

#[pymethods]
impl Template {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        head: Vec<u8>,
        id_end: usize,
        middle: Vec<u8>,
        second_end: usize,
        zone_at: usize,
        tail: Vec<u8>,
        end: usize,
        fraction_us: i64,
    ) -> PyResult<Self> {
        let is_whole = head.len() + UUID_CHARS == id_end
            && id_end + middle.len() + SECOND_BYTES == second_end
            && second_end + 1 < zone_at
            && zone_at - second_end <= 7
            && zone_at + tail.len() == end;
        if !is_whole {
            return Err(PyValueError::new_err("the parts of the template do not follow each other"));
        }
        Ok(Template { head, id_end, middle, second_end, zone_at, tail, end, fraction_us })
    }

    /// When a message that matches expires, in microseconds; None if it does not match.
    pub fn expiry(&self, message: &[u8]) -> Option<i64> {
        let envelope = message.get(..self.end)?;
        let second_at = self.second_end - SECOND_BYTES;
        if !envelope.starts_with(&self.head)
            || envelope[self.id_end..second_at] != self.middle[..]
            || envelope[self.zone_at..] != self.tail[..]
            || !is_uuid(&envelope[self.head.len()..self.id_end])
            || !is_one_chunk(&message[self.end..])
            || envelope[self.second_end] != b'.'
        {
            return None;
        }
        let fraction = decimal(&envelope[self.second_end + 1..self.zone_at])?;
        Some(decode_second(&envelope[second_at..self.second_end])? + fraction * self.fraction_us)
    }
}

fn is_uuid(text: &[u8]) -> bool {
    text.iter().enumerate().all(|(place, byte)| match place {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    })
}

/// Whether this is empty or exactly one data chunk that is not empty.
fn is_one_chunk(rest: &[u8]) -> bool {
    if rest.is_empty() {
        return true;
    }
    rest.len() > CHUNK_HEAD
        && rest[0] == CHUNK_DATA
        && i32::from_be_bytes([rest[1], rest[2], rest[3], rest[4]]) as i64 == (rest.len() - CHUNK_HEAD) as i64
}

fn decimal(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0i64, |value, byte| byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0')))
}

/// Microseconds since 1970 of a time such as 2026-11-15T19:55:07.
fn decode_second(text: &[u8]) -> Option<i64> {
    if text[4] != b'-' || text[7] != b'-' || text[10] != b'T' || text[13] != b':' || text[16] != b':' {
        return None;
    }
    let (year, month, day) = (decimal(&text[..4])?, decimal(&text[5..7])?, decimal(&text[8..10])?);
    let (hour, minute, second) = (decimal(&text[11..13])?, decimal(&text[14..16])?, decimal(&text[17..19])?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last_day = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        _ => return None,
    };
    if year < 1 || day < 1 || day > last_day || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    // days since 1970 of the proleptic Gregorian calendar, counted from March so that a leap day comes last
    let (from_march, year) = ((month + 9) % 12, if month < 3 { year - 1 } else { year });
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (from_march * 306 + 5) / 10 + day - 1 - 719_468;
    Some((days * 86_400 + hour * 3_600 + minute * 60 + second) * 1_000_000)
}

/// Messages as unmasked frames, one after another (RFC 6455, 5.2).
#[pyfunction]
pub fn encode_frames<'py>(
    py: Python<'py>,
    payloads: &Bound<'py, PySequence>,
    is_text: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let opcode = if is_text { 0x81 } else { 0x82 };
    let count = payloads.len()?;
    let mut out = Vec::new();
    for place in 0..count {
        let payload = payloads.get_item(place)?;
        let payload = payload.cast::<PyBytes>()?.as_bytes();
        if out.is_empty() {
            out.reserve(count * (payload.len() + 10));
        }
        out.push(opcode);
        match payload.len() {
            size @ 0..=125 => out.push(size as u8),
            size @ 126..=0xffff => {
                out.push(126);
                out.extend_from_slice(&(size as u16).to_be_bytes());
            }
            size => {
                out.push(127);
                out.extend_from_slice(&(size as u64).to_be_bytes());
            }
        }
        out.extend_from_slice(payload);
    }
    Ok(PyBytes::new(py, &out))
}
