//! MessagePack as far as the journal writes it: every value in its shortest form.

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
