//! The Secret with the token by which the ScyllaDB Manager agents authenticate ScyllaDB Manager.

use messina_text::Reason;
use std::sync::Arc;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use messina_api::names;
use serde::Deserialize;
use serde_json::json;

use crate::datacenter::{
    layout::{AGENT_CONFIG_FILE, TOKEN_FILE},
    model::{
        component::Component,
        metadata::{cluster_labels, owned},
        observed::Observed,
        plan::Note,
    },
    reasons,
};

#[derive(Default)]
pub(crate) struct Token {
    pub(crate) secret: Option<Secret>,
    pub(crate) progressing: Vec<Note>,
    pub(crate) degraded: Vec<Note>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AgentSettings {
    auth_token: Option<String>,
}

/// What was found when the token was read from a Secret.
enum Found {
    Token(String),
    Nothing,
    Unreadable(String),
    Absent(String),
}

/// Returns the Secret with the token. The token is the first one of: that of the user's agent configuration, that of
/// the Secret in the override annotation, that of the datacenter's own Secret, a new one. A referenced Secret that does
/// not exist is waited for.
pub(crate) fn token(observed: &Observed) -> Token {
    let datacenter = &observed.datacenter;
    let own = names::datacenter::agent_auth_token(&datacenter.name);
    let of_user = datacenter.racks.first().and_then(|rack| rack.agent_custom_config_secret.as_deref());
    let named = [(of_user, AGENT_CONFIG_FILE), (datacenter.token_override.as_deref(), TOKEN_FILE)];
    let of_others = &observed.user_objects.secrets;
    let named = named.into_iter().filter_map(|(name, key)| {
        let name = name?;
        Some(find(observed, name, of_others.get(name).map(Arc::as_ref), key))
    });
    // The operator creates its own Secret, so it does not wait for that one.
    let existing = observed.secrets.get(&own).map(|secret| find(observed, &own, Some(secret), TOKEN_FILE));
    for found in named.chain(existing) {
        match found {
            Found::Nothing => {}
            Found::Token(token) => return Token { secret: Some(secret(observed, own, &token)), ..Token::default() },
            Found::Unreadable(message) => {
                return Token { degraded: vec![note(reasons::UNREADABLE_SECRET, message)], ..Token::default() };
            }
            Found::Absent(message) => {
                return Token { progressing: vec![note(reasons::WAITING_FOR_SECRET, message)], ..Token::default() };
            }
        }
    }
    if observed.new_token.is_empty() {
        // Agents with an empty token would accept every request.
        let message = format!(
            "Secret {}/{own} does not exist yet. The operator creates it when it has generated a token.",
            datacenter.namespace
        );
        return Token { progressing: vec![note(reasons::WAITING_FOR_TOKEN, message)], ..Token::default() };
    }
    Token { secret: Some(secret(observed, own, &observed.new_token)), ..Token::default() }
}

fn note(reason: Reason, message: String) -> Note {
    Note { component: Component::AgentToken, reason, message }
}

fn find(observed: &Observed, name: &str, secret: Option<&Secret>, key: &str) -> Found {
    let reference = format!("Secret {}/{name}", observed.datacenter.namespace);
    let Some(secret) = secret else {
        return Found::Absent(format!(
            "{reference} does not exist. The ScyllaDB Manager agents read their token from it. The operator starts \
             nodes when it exists."
        ));
    };
    let Some(bytes) = secret.data.as_ref().and_then(|data| data.get(key)) else { return Found::Nothing };
    let text = String::from_utf8_lossy(&bytes.0);
    // An empty file is not a YAML mapping, but it is not an error either.
    if text.trim().is_empty() {
        return Found::Nothing;
    }
    match serde_saphyr::from_str::<AgentSettings>(&text) {
        Ok(settings) => settings.auth_token.filter(|token| !token.is_empty()).map_or(Found::Nothing, Found::Token),
        Err(_) => Found::Unreadable(format!(
            "{reference} has no valid YAML in {key}, so the token of the ScyllaDB Manager agents is unknown. Correct \
             the Secret."
        )),
    }
}

fn secret(observed: &Observed, name: String, token: &str) -> Secret {
    let datacenter = &observed.datacenter;
    let text = format!("auth_token: {}\n", json!(token));
    Secret {
        metadata: owned(datacenter, name, cluster_labels(datacenter)),
        type_: Some("Opaque".into()),
        data: Some([(TOKEN_FILE.to_owned(), ByteString(text.into_bytes()))].into()),
        ..Secret::default()
    }
}
