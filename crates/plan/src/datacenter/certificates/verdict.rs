//! Whether a certificate that is stored can stay.

use jiff::{SignedDuration, Timestamp};

use crate::datacenter::model::{
    certificate::{
        chain::{DesiredCertificate, Purpose, SignedCertificate, SigningRequest},
        reading::Certificate,
    },
    observed::Observed,
};

/// Clocks differ.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(1);
/// While nodes get addresses one after another, they are certified together, once in this time.
const MIN_SIGNING_INTERVAL: SignedDuration = SignedDuration::from_mins(2);

/// How a certificate that is there stands.
pub(crate) enum CertificateCheck<'a> {
    ValidCertificate(ValidCertificate<'a>),
    Sign(String),
}

pub(crate) struct ValidCertificate<'a> {
    pub(crate) certificates: &'a [Certificate],
    /// When it is to be looked at again.
    pub(crate) requeue_at: Timestamp,
}

impl DesiredCertificate {
    /// Whether what is there can stay. What an authority is to have signed is judged only if the authority can stay.
    pub(crate) fn check<'a>(&self, observed: &'a Observed) -> CertificateCheck<'a> {
        let now = observed.now;
        let sign = |reason: &str| CertificateCheck::Sign(reason.to_owned());
        let Some(stored) = observed.certificates.get(&self.name) else { return sign("there is none") };
        let Some(own) = stored.certificates.first() else { return sign("the certificate cannot be read") };
        if !stored.fits_key {
            return sign("the key is not that of the certificate");
        }
        let refresh_at = self.refresh_at(own);
        if now >= own.not_after {
            return CertificateCheck::Sign(format!("it ran out at {}", own.not_after));
        }
        if now >= refresh_at {
            return CertificateCheck::Sign(format!("it is renewed from {refresh_at} on"));
        }
        if !self.is_for_this(own) {
            return sign("it is for something else");
        }
        if !stored.is_signed {
            return sign("its authority has changed");
        }
        let wanted = &self.names;
        let has_all = wanted.dns_names.is_subset(&own.dns_names) && wanted.addresses.is_subset(&own.addresses);
        let has_no_more = own.dns_names.is_subset(&wanted.dns_names) && own.addresses.is_subset(&wanted.addresses);
        let is_complete = wanted.pending.is_empty();
        let may_sign_at = own.not_before.saturating_add(MIN_SIGNING_INTERVAL).unwrap_or(Timestamp::MAX);
        let requeue_at = match (has_all, is_complete) {
            (true, true) if has_no_more => refresh_at,
            // A name too many does no harm while others are still to come.
            (true, false) => refresh_at,
            (false, false) if now < may_sign_at => may_sign_at.min(refresh_at),
            _ => return sign("nodes have other names or addresses"),
        };
        CertificateCheck::ValidCertificate(ValidCertificate { certificates: &stored.certificates, requeue_at })
    }

    pub(crate) fn is_for_this(&self, certificate: &Certificate) -> bool {
        let subject = |name: &Option<String>| name.as_ref().map(|name| format!("CN={name}"));
        let is_former = self.former.is_some() && subject(&self.former).as_ref() == Some(&certificate.subject);
        (is_former || certificate.subject == subject(&self.common_name).unwrap_or_default())
            && match self.purpose {
                Purpose::Authority => certificate.is_authority,
                Purpose::Client => certificate.is_for_clients && !certificate.is_authority,
                Purpose::Serving => certificate.is_for_servers && !certificate.is_authority,
            }
    }

    /// When its time comes, or a fifth of its life is left, whichever comes first.
    pub(crate) fn refresh_at(&self, certificate: &Certificate) -> Timestamp {
        let fifth = certificate.not_after.duration_since(certificate.not_before) / 5;
        let latest = certificate.not_after.saturating_sub(fifth).unwrap_or(Timestamp::MIN);
        certificate.not_before.saturating_add(self.term.refresh).unwrap_or(Timestamp::MAX).min(latest)
    }

    /// Nothing outlives who signed it.
    pub(crate) fn order(
        &self,
        reason: String,
        signer: Option<(&Certificate, SignedCertificate)>,
        now: Timestamp,
    ) -> SigningRequest {
        let end = now.saturating_add(self.term.validity).unwrap_or(Timestamp::MAX);
        SigningRequest {
            secret: self.name.clone(),
            purpose: self.purpose,
            common_name: self.common_name.clone(),
            dns_names: self.names.dns_names.clone(),
            addresses: self.names.addresses.clone(),
            not_before: now.saturating_sub(CLOCK_SKEW).unwrap_or(Timestamp::MIN),
            not_after: signer.as_ref().map_or(end, |(authority, _)| end.min(authority.not_after)),
            signer: signer.map(|(_, signer)| signer),
            reason,
        }
    }
}
