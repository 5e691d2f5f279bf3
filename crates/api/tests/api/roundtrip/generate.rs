//! Generates objects that a definition accepts, without unknown fields, which the API server prunes, and with all
//! fields that have a default, which the API server sets.

use std::ops::RangeInclusive;

use proptest::{collection, option, prelude::*, sample, string::string_regex};
use serde_json::{Map, Value, json};

use crate::{Definition, element, is_required, properties};

/// Fields of every object, with constant values.
const FIXED: [&str; 3] = ["apiVersion", "kind", "metadata"];

pub(super) const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Patterns of strings, each with a narrower pattern for short strings, and an example.
const PATTERNS: [(&str, &str, &str); 3] = [
    (
        QUANTITY,
        r"[+-]?([0-9]{1,3}(\.[0-9]{0,2})?|\.[0-9]{1,2})([KMGTPE]i|[numkMGTPE]|[eE][+-]?([0-9]{1,2}|\.5))?",
        "1.50Gi",
    ),
    ("^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", "[A-Za-z]([A-Za-z0-9_,:]{0,6}[A-Za-z0-9_])?", "AsExpected"),
    (
        r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        r"([a-z0-9]([-a-z0-9]{0,3}[a-z0-9])?(\.[a-z0-9]{1,3}){0,2}/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,4})?[A-Za-z0-9]",
        "example.com/Available",
    ),
];

/// Probability of an optional field; high enough for deeply nested fields.
const OURS_PRESENT: f64 = 0.75;
/// Probability of an optional field of an embedded type; low, because there are thousands.
const EMBEDDED_PRESENT: f64 = 0.15;

/// Generates any object that a definition accepts.
pub(super) fn any_object(definition: &'static Definition) -> BoxedStrategy<Value> {
    any_value(&without_fixed(&definition.schema)).prop_map(|fields| with_fixed(definition, fields)).boxed()
}

/// Returns an object with a name only, accepted or not.
pub(super) fn empty_object(definition: &Definition) -> Value {
    with_fixed(definition, json!({}))
}

/// Returns the smallest object that a definition accepts, and for each field some with little else.
pub(super) fn sparse_objects(definition: &Definition) -> Vec<Value> {
    let values = sparse_values(&without_fixed(&definition.schema));
    values.into_iter().map(|fields| with_fixed(definition, fields)).collect()
}

fn without_fixed(schema: &Value) -> Value {
    let mut schema = schema.clone();
    schema["properties"].as_object_mut().unwrap().retain(|name, _| !FIXED.contains(&name.as_str()));
    schema
}

fn with_fixed(definition: &Definition, mut object: Value) -> Value {
    object["apiVersion"] = definition.api_version.as_str().into();
    object["kind"] = definition.kind.as_str().into();
    object["metadata"] = json!({"name": "example"});
    if definition.namespaced {
        object["metadata"]["namespace"] = "default".into();
    }
    object
}

/// The values that a schema accepts.
enum Shape<'a> {
    Enum(&'a [Value]),
    IntOrText,
    Anything,
    Object,
    Map(&'a Value),
    List(&'a Value),
    Boolean,
    Integer(RangeInclusive<i64>),
    DateTime,
    Text,
}

fn shape(schema: &Value) -> Shape<'_> {
    if let Some(values) = schema["enum"].as_array() {
        return Shape::Enum(values);
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return Shape::IntOrText;
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return Shape::Anything;
    }
    match (schema["type"].as_str(), schema["format"].as_str(), element(schema)) {
        (Some("object"), None, None) => Shape::Object,
        (Some("object"), None, Some(element)) => Shape::Map(element),
        (Some("array"), None, Some(element)) => Shape::List(element),
        (Some("boolean"), None, None) => Shape::Boolean,
        (Some("integer"), Some("int32"), None) => Shape::Integer(range(schema, i32::MIN.into(), i32::MAX.into())),
        (Some("integer"), Some("int64"), None) => Shape::Integer(range(schema, i64::MIN, i64::MAX)),
        (Some("string"), Some("date-time"), None) => Shape::DateTime,
        (Some("string"), None, None) => Shape::Text,
        _ => panic!("no values can be made up for {schema}"),
    }
}

/// Bounds are floating-point numbers with integral values.
fn range(schema: &Value, least: i64, greatest: i64) -> RangeInclusive<i64> {
    let bound = |keyword: &str| schema[keyword].as_f64().map(|bound| bound as i64);
    bound("minimum").unwrap_or(least)..=bound("maximum").unwrap_or(greatest)
}

/// Returns the bounds of the length of a string or a list.
fn size(schema: &Value, least: &str, greatest: &str, limit: usize) -> RangeInclusive<usize> {
    let bound = |keyword: &str| schema[keyword].as_u64().map(|bound| bound as usize);
    bound(least).unwrap_or(0)..=bound(greatest).unwrap_or(limit).min(limit)
}

fn must_be_there(schema: &Value, name: &str, property: &Value) -> bool {
    is_required(schema, name) || property.get("default").is_some()
}

fn pattern(schema: &Value) -> Option<(&'static str, &'static str)> {
    let wanted = schema["pattern"].as_str()?;
    let known = PATTERNS.iter().find(|(pattern, ..)| *pattern == wanted);
    Some(
        known.map(|(_, narrower, example)| (*narrower, *example)).unwrap_or_else(|| panic!("unknown pattern {wanted}")),
    )
}

fn any_value(schema: &Value) -> BoxedStrategy<Value> {
    match shape(schema) {
        Shape::Enum(values) => sample::select(values.to_vec()).boxed(),
        Shape::IntOrText => prop_oneof![any::<i64>().prop_map(Value::from), any_text(schema)].boxed(),
        Shape::Anything => any_json(),
        Shape::Object => any_fields(schema),
        Shape::Map(element) => collection::btree_map(any_key(), any_value(element), 0..=3)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
            .boxed(),
        Shape::List(element) => {
            collection::vec(any_value(element), size(schema, "minItems", "maxItems", 3)).prop_map(Value::Array).boxed()
        }
        Shape::Boolean => any::<bool>().prop_map(Value::Bool).boxed(),
        Shape::Integer(range) => {
            prop_oneof![Just(*range.start()), Just(0.max(*range.start())), range.clone(), Just(*range.end())]
                .prop_map(Value::from)
                .boxed()
        }
        Shape::DateTime => (1970..2100_u16, 1..=12_u8, 1..=28_u8, 0..24_u8, 0..60_u8, 0..60_u8)
            .prop_map(|(year, month, day, hour, minute, second)| {
                Value::String(format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"))
            })
            .boxed(),
        Shape::Text => any_text(schema),
    }
}

fn any_fields(schema: &Value) -> BoxedStrategy<Value> {
    let names: Vec<String> = properties(schema).map(|(name, _)| name.clone()).collect();
    let values: Vec<BoxedStrategy<Option<Value>>> = properties(schema)
        .map(|(name, property)| {
            let value = any_value(property);
            if must_be_there(schema, name, property) {
                value.prop_map(Some).boxed()
            } else {
                let ours = property.get("description").is_some();
                option::weighted(if ours { OURS_PRESENT } else { EMBEDDED_PRESENT }, value).boxed()
            }
        })
        .collect();
    let fields = move |values: Vec<Option<Value>>| -> Map<String, Value> {
        names.iter().zip(values).filter_map(|(name, value)| Some((name.clone(), value?))).collect()
    };
    values.prop_map(move |values| Value::Object(fields(values))).boxed()
}

/// Generates any string, including the empty one and the values that the field's description names.
fn any_text(schema: &Value) -> BoxedStrategy<Value> {
    let text = if let Some((narrower, _)) = pattern(schema) {
        string_regex(narrower).unwrap().boxed()
    } else {
        prop_oneof![3 => sample::select(words(schema)), 1 => any_key()].boxed()
    };
    let length = size(schema, "minLength", "maxLength", usize::MAX);
    text.prop_filter("length", move |text| length.contains(&text.chars().count())).prop_map(Value::String).boxed()
}

fn words(schema: &Value) -> Vec<String> {
    let description = schema["description"].as_str().unwrap_or_default();
    let words = description.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    words.chain(["", " ", "null", "0", "true", "Größe", "日本", "a\n\"b\"\\"]).map(str::to_owned).collect()
}

fn any_key() -> BoxedStrategy<String> {
    collection::vec(any::<char>(), 0..6).prop_map(String::from_iter).boxed()
}

/// Generates any value except null, which the API server drops.
fn any_json() -> BoxedStrategy<Value> {
    let scalar = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e9..1e9_f64).prop_map(Value::from),
        any_key().prop_map(Value::from),
    ];
    scalar
        .prop_recursive(3, 16, 4, |inner| {
            let inner = prop_oneof![4 => inner, 1 => Just(Value::Null)];
            prop_oneof![
                collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                collection::btree_map(any_key(), inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
        .boxed()
}

/// Returns the smallest value that a schema accepts, and others, including every field and every value of an enum.
fn sparse_values(schema: &Value) -> Vec<Value> {
    match shape(schema) {
        Shape::Enum(values) => values.to_vec(),
        Shape::IntOrText => [json!(0), json!(-1)].into_iter().chain(sparse_texts(schema)).collect(),
        Shape::Anything => vec![json!({}), json!([]), json!(""), json!(0), json!(false), json!({"a": [null, 1.5]})],
        Shape::Object => sparse_fields(schema),
        Shape::Map(element) => {
            let maps = sparse_values(element).into_iter().map(|value| json!({"key": value}));
            std::iter::once(json!({})).chain(maps).collect()
        }
        Shape::List(element) => {
            assert_eq!(*size(schema, "minItems", "maxItems", 1).start(), 0, "no short lists for {schema}");
            let lists = sparse_values(element).into_iter().map(|value| json!([value]));
            std::iter::once(json!([])).chain(lists).collect()
        }
        Shape::Boolean => vec![json!(false), json!(true)],
        Shape::Integer(range) => vec![json!(0.max(*range.start())), json!(range.start()), json!(range.end())],
        Shape::DateTime => vec![json!("2024-05-06T07:08:09Z")],
        Shape::Text => sparse_texts(schema),
    }
}

fn sparse_fields(schema: &Value) -> Vec<Value> {
    let fields: Vec<_> = properties(schema).map(|(name, property)| (name, property, sparse_values(property))).collect();
    let smallest: Map<String, Value> = fields
        .iter()
        .filter(|(name, property, _)| must_be_there(schema, name, property))
        .map(|(name, _, values)| ((*name).clone(), values[0].clone()))
        .collect();
    let others = fields.into_iter().flat_map(|(name, _, values)| {
        let smallest = &smallest;
        values.into_iter().map(move |value| {
            let mut fields = smallest.clone();
            fields.insert(name.clone(), value);
            Value::Object(fields)
        })
    });
    std::iter::once(Value::Object(smallest.clone())).chain(others).collect()
}

fn sparse_texts(schema: &Value) -> Vec<Value> {
    if let Some((_, example)) = pattern(schema) {
        return vec![json!(example)];
    }
    let length = size(schema, "minLength", "maxLength", usize::MAX);
    let texts: Vec<Value> =
        ["", "x"].into_iter().filter(|text| length.contains(&text.len())).map(Value::from).collect();
    assert!(!texts.is_empty(), "no short texts for {schema}");
    texts
}
