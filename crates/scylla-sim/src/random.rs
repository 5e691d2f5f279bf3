//! Random bytes.

use ring::rand::{SecureRandom, SystemRandom};

/// Returns random bytes, or bytes from the clock if the system has none, which does not occur after boot.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if SystemRandom::new().fill(&mut bytes).is_err() {
        let now = jiff::Timestamp::now().as_nanosecond().to_le_bytes();
        bytes.iter_mut().zip(now).for_each(|(byte, clock)| *byte = clock);
    }
    bytes
}

/// A random UUID, version 4.
pub(crate) fn uuid() -> String {
    let mut bytes: [u8; 16] = bytes();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
}

/// A random token of the ring.
pub(crate) fn token() -> i64 {
    i64::from_le_bytes(bytes())
}
