//! Collects the invalid fields of an object.

use crate::datacenter::model::spec::InvalidField;

#[derive(Default)]
pub(crate) struct InvalidFields(pub(crate) Vec<InvalidField>);

impl InvalidFields {
    pub(crate) fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(InvalidField { field: field.into(), message: message.into() });
    }

    pub(crate) fn not_negative(&mut self, field: &str, value: Option<i32>) {
        if let Some(value) = value.filter(|value| *value < 0) {
            self.add(field, format!("{value} is less than 0: set it to 0 or more, or omit it"));
        }
    }
}

pub(crate) fn required(value: Option<&String>, field: &str, invalid: &mut InvalidFields) -> Option<String> {
    let value = value.filter(|value| !value.is_empty());
    if value.is_none() {
        invalid.add(field, "the value is required: set it");
    }
    value.cloned()
}
