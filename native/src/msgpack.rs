//! The subset of MessagePack that the journal writes: every value in its shortest form.

pub const NIL: u8 = 0xc0;

pub fn put_array(out: &mut Vec<u8>, count: usize) {
    match count {
        0..=15 => out.push(0x90 | count as u8),
        16..=0xffff => {
            out.push(0xdc);
            out.extend_from_slice(&(count as u16).to_be_bytes());
        }
        _ => {
            out.push(0xdd);
            out.extend_from_slice(&(count as u32).to_be_bytes());
        }
    }
}

pub fn put_int(out: &mut Vec<u8>, value: i64) {
    if value >= 0 {
        put_uint(out, value as u64);
    } else if value >= -32 {
        out.push(value as i8 as u8);
    } else if value >= i64::from(i8::MIN) {
        out.push(0xd0);
        out.push(value as i8 as u8);
    } else if value >= i64::from(i16::MIN) {
        out.push(0xd1);
        out.extend_from_slice(&(value as i16).to_be_bytes());
    } else if value >= i64::from(i32::MIN) {
        out.push(0xd2);
        out.extend_from_slice(&(value as i32).to_be_bytes());
    } else {
        out.push(0xd3);
        out.extend_from_slice(&value.to_be_bytes());
    }
}

pub fn put_uint(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=0x7f => out.push(value as u8),
        0x80..=0xff => out.extend_from_slice(&[0xcc, value as u8]),
        0x100..=0xffff => {
            out.push(0xcd);
            out.extend_from_slice(&(value as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xce);
            out.extend_from_slice(&(value as u32).to_be_bytes());
        }
        _ => {
            out.push(0xcf);
            out.extend_from_slice(&value.to_be_bytes());
        }
    }
}

pub fn put_binary(out: &mut Vec<u8>, bytes: &[u8]) {
    match bytes.len() {
        size @ 0..=0xff => out.extend_from_slice(&[0xc4, size as u8]),
        size @ 0x100..=0xffff => {
            out.push(0xc5);
            out.extend_from_slice(&(size as u16).to_be_bytes());
        }
        size => {
            out.push(0xc6);
            out.extend_from_slice(&(size as u32).to_be_bytes());
        }
    }
    out.extend_from_slice(bytes);
}

/// Reads that subset; None if the input ends too early or a value is not in its shortest form.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(rest: &'a [u8]) -> Self {
        Reader { rest }
    }

    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|taken| taken[0])
    }

    /// An unsigned number of `count` bytes; None below `least`, which would have a shorter form.
    fn number(&mut self, count: usize, least: u64) -> Option<u64> {
        let value = self.take(count)?.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        (value >= least).then_some(value)
    }

    pub fn array(&mut self) -> Option<usize> {
        match self.byte()? {
            short @ 0x90..=0x9f => Some(usize::from(short & 0x0f)),
            0xdc => self.number(2, 16).map(|count| count as usize),
            0xdd => self.number(4, 0x1_0000).map(|count| count as usize),
            _ => None,
        }
    }

    pub fn int(&mut self) -> Option<i128> {
        let code = self.byte()?;
        self.int_of(code)
    }

    fn int_of(&mut self, code: u8) -> Option<i128> {
        let unsigned = |value: u64| i128::from(value);
        match code {
            0..=0x7f => Some(i128::from(code)),
            0xe0..=0xff => Some(i128::from(code as i8)),
            0xcc => self.number(1, 0x80).map(unsigned),
            0xcd => self.number(2, 0x100).map(unsigned),
            0xce => self.number(4, 0x1_0000).map(unsigned),
            0xcf => self.number(8, 0x1_0000_0000).map(unsigned),
            0xd0 => self.number(1, 0).map(|value| i128::from(value as u8 as i8)).filter(|value| *value < -32),
            0xd1 => self.number(2, 0).map(|value| i128::from(value as u16 as i16)).filter(|v| *v < i8::MIN.into()),
            0xd2 => self.number(4, 0).map(|value| i128::from(value as u32 as i32)).filter(|v| *v < i16::MIN.into()),
            0xd3 => self.number(8, 0).map(|value| i128::from(value as i64)).filter(|v| *v < i32::MIN.into()),
            _ => None,
        }
    }

    fn binary_of(&mut self, code: u8) -> Option<&'a [u8]> {
        let size = match code {
            0xc4 => self.number(1, 0)?,
            0xc5 => self.number(2, 0x100)?,
            0xc6 => self.number(4, 0x1_0000)?,
            _ => return None,
        };
        self.take(usize::try_from(size).ok()?)
    }

    pub fn binary(&mut self) -> Option<&'a [u8]> {
        let code = self.byte()?;
        self.binary_of(code)
    }

    /// The outer None is an error, the inner one nil.
    pub fn int_or_nil(&mut self) -> Option<Option<i128>> {
        match self.byte()? {
            NIL => Some(None),
            code => self.int_of(code).map(Some),
        }
    }

    pub fn binary_or_nil(&mut self) -> Option<Option<&'a [u8]>> {
        match self.byte()? {
            NIL => Some(None),
            code => self.binary_of(code).map(Some),
        }
    }

    /// An integer (`Ok`), bytes (`Err`) or nil (the inner None).
    pub fn int_or_binary(&mut self) -> Option<Option<Result<i128, &'a [u8]>>> {
        match self.byte()? {
            NIL => Some(None),
            code @ 0xc4..=0xc6 => self.binary_of(code).map(|bytes| Some(Err(bytes))),
            code => self.int_of(code).map(|value| Some(Ok(value))),
        }
    }
}
