//! Quantities, such as `500m` or `1Gi`, in the canonical form of the API server.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Decimal suffixes, each a thousand times the one before, from the smallest one. The unit 1 has no suffix.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// 1 in the smallest unit.
const ONE: i128 = 1_000_000_000;

/// The largest quantity that the API server accepts.
const MAX: i128 = i64::MAX as i128 * ONE;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Notation {
    Decimal,
    Binary,
    Exponent,
}

/// An amount, counted in billionths.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Amount {
    billionths: i128,
    notation: Notation,
}

impl Amount {
    /// Parses a quantity; none if it is invalid, or larger than the API server accepts.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (negative, unsigned) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (digits, unit) = unsigned.split_at(end);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if whole.len() + fraction.len() == 0 || fraction.contains('.') {
            return None;
        }
        let (numerator, denominator, notation) = multiplier(unit)?;
        // Fractions of a billionth are rounded up, as the API server does.
        let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
        let denominator = denominator.checked_mul(10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?)?;
        let amount = mantissa.checked_mul(numerator)?;
        let billionths = amount / denominator + i128::from(amount % denominator != 0);
        (billionths <= MAX).then_some(Self { billionths: if negative { -billionths } else { billionths }, notation })
    }

    /// Parses a quantity; none if it is invalid.
    pub(crate) fn of(quantity: &Quantity) -> Option<Self> {
        Self::parse(&quantity.0)
    }

    /// Whether it is less than the other one, regardless of units.
    pub(crate) fn is_below(self, other: Self) -> bool {
        self.billionths < other.billionths
    }

    pub(crate) fn is_positive(self) -> bool {
        self.billionths > 0
    }

    /// Returns the canonical form: with the largest unit that leaves an integer.
    pub(crate) fn canonical(self) -> String {
        let whole = self.billionths % ONE == 0;
        let as_binary = self.notation == Notation::Binary && whole && self.billionths.abs() >= 1024 * ONE;
        if self.billionths == 0 {
            return "0".into();
        }
        if as_binary {
            let (number, step) = largest_unit(self.billionths / ONE, 1024, BINARY.len());
            return format!("{number}{}", BINARY[step]);
        }
        let (number, step) = largest_unit(self.billionths, 1000, DECIMAL.len());
        match (self.notation, 3 * (step as i32) - 9) {
            (Notation::Exponent, 0) => number.to_string(),
            (Notation::Exponent, exponent) => format!("{number}e{exponent}"),
            _ => format!("{number}{}", DECIMAL[step]),
        }
    }
}

fn largest_unit(mut number: i128, base: i128, units: usize) -> (i128, usize) {
    let mut step = 0;
    while step + 1 < units && number % base == 0 {
        number /= base;
        step += 1;
    }
    (number, step)
}

/// Returns the factor of a unit, in billionths, as numerator and denominator.
fn multiplier(unit: &str) -> Option<(i128, i128, Notation)> {
    if let Some(step) = DECIMAL.iter().position(|one| *one == unit) {
        return Some((1000_i128.pow(u32::try_from(step).ok()?), 1, Notation::Decimal));
    }
    if let Some(step) = BINARY.iter().position(|one| *one == unit) {
        return Some((1024_i128.pow(u32::try_from(step).ok()?) * ONE, 1, Notation::Binary));
    }
    let exponent = unit.strip_prefix(['e', 'E'])?;
    let exponent: i32 = exponent.strip_prefix('+').unwrap_or(exponent).parse().ok()?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
    Some(if exponent < 0 { (ONE, power, Notation::Exponent) } else { (ONE.checked_mul(power)?, 1, Notation::Exponent) })
}

/// Returns the canonical form of a quantity; none if it is invalid.
pub(crate) fn canonical(quantity: &Quantity) -> Option<Quantity> {
    Some(Quantity(Amount::parse(&quantity.0)?.canonical()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn canonical(text: &str) -> Option<String> {
        Amount::parse(text).map(Amount::canonical)
    }

    #[test]
    fn quantities_are_canonical_as_by_the_api_server() {
        // As the API server returns them.
        for (given, kept) in [
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1.5Gi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("1000", "1k"),
            ("10M", "10M"),
            ("0.5Ki", "512"),
            ("0.1Ki", "102400m"),
            ("1.1Ki", "1126400m"),
            ("1536", "1536"),
            ("1e3", "1e3"),
            ("1000e0", "1e3"),
            ("12E3", "12e3"),
            ("5e-1", "500e-3"),
            ("0Gi", "0"),
            ("-1000m", "-1"),
            ("+.5", "500m"),
            ("1.", "1"),
            ("0.1n", "1n"),
        ] {
            assert_eq!(canonical(given).as_deref(), Some(kept), "{given}");
        }
    }

    #[test]
    fn invalid_quantities_are_rejected() {
        for text in
            ["", "-", ".", "Gi", "1 Gi", "1gi", "1..5", "1.5.5", "1e", "one", "1Gib", "é", "-é", "9e99", "1e-99"]
        {
            assert_eq!(canonical(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn canonical_form_is_stable(text in "[+-]?[0-9.]{0,25}(n|u|m|k|Ki|Mi|Gi|M|G|E|Ei|[eE][+-]?[0-9]{1,3})?") {
            if let Some(once) = canonical(&text) {
                prop_assert_eq!(canonical(&once), Some(once.clone()), "{}", text);
            }
        }

        #[test]
        fn parsing_never_panics(text in ".*") {
            let _ = canonical(&text);
        }
    }
}
