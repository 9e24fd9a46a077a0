//! Whose data it is. The header X-Scope-OrgID says it, as at a Pyroscope server, or an address that starts with
//! /tenant/NAME/; what says nothing belongs to [`ANONYMOUS`].

use std::fmt;

use axum::http::HeaderMap;

/// The header's name.
pub(crate) const HEADER: &str = "x-scope-orgid";
/// The tenant of what says none, as Pyroscope calls it.
pub(crate) const ANONYMOUS: &str = "anonymous";
/// How the address of a tenant's pages starts.
pub(crate) const PREFIX: &str = "/tenant/";
const LONGEST: usize = 150;

/// A checked name of a tenant, which can stand in an address and be a file's name as it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tenant(String);

impl Tenant {
    /// The tenant of what says none.
    pub(crate) fn anonymous() -> Self {
        Self(ANONYMOUS.into())
    }

    /// Checks a name by Grafana's rules; `said_by` is named in the error.
    pub(crate) fn parse(name: &str, said_by: &str) -> Result<Self, String> {
        let taken = |byte: u8| byte.is_ascii_alphanumeric() || b"!._*'()-".contains(&byte);
        if (1..=LONGEST).contains(&name.len()) && name.bytes().all(taken) && name != "." && name != ".." {
            return Ok(Self(name.into()));
        }
        let start: String = name.chars().take(LONGEST).collect();
        Err(format!(
            "{said_by}: the tenant {start:?} is not taken; allowed are 1 to {LONGEST} letters, digits and ! . _ * ' ( ) -"
        ))
    }

    /// Whose data a request is about, and its path without the tenant. Who says it by the header is held to it, so that
    /// a proxy that sets the header decides.
    pub(crate) fn of<'a>(headers: &HeaderMap, path: &'a str) -> Result<(Option<Self>, &'a str), String> {
        let mut said = headers.get_all(HEADER).iter();
        let by_header = match said.next() {
            Some(_) if said.next().is_some() => return Err("X-Scope-OrgID is there twice; send it once".into()),
            Some(value) => Some(Self::parse(&String::from_utf8_lossy(value.as_bytes()), "X-Scope-OrgID")?),
            None => None,
        };
        let Some((name, _)) = path.strip_prefix(PREFIX).and_then(|rest| rest.split_once('/')) else {
            return Ok((by_header, path));
        };
        let by_path = Self::parse(name, "the address")?;
        match by_header {
            Some(header) if header != by_path => {
                Err(format!("the address is of tenant {by_path}, and X-Scope-OrgID says {header}"))
            }
            _ => Ok((Some(by_path), &path[PREFIX.len() + name.len()..])),
        }
    }

    /// Where its pages are.
    pub(crate) fn home(&self) -> String {
        if self.0 == ANONYMOUS { "/".into() } else { format!("{PREFIX}{self}/") }
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whose data is shown, and whose may be, if there is a choice.
#[derive(Clone, Debug)]
pub(crate) struct TenantChoice {
    /// Whose is.
    pub(crate) tenant: Tenant,
    /// Whose may be.
    pub(crate) names: Vec<Tenant>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(header: Option<&str>, path: &str) -> Result<(Option<String>, String), String> {
        let mut headers = HeaderMap::new();
        headers.extend(header.map(|value| (axum::http::HeaderName::from_static(HEADER), value.parse().unwrap())));
        Tenant::of(&headers, path).map(|(tenant, path)| (tenant.map(|tenant| tenant.to_string()), path.to_owned()))
    }

    #[test]
    fn header_and_address_say_it_and_may_not_differ() {
        let blue = || Some("blue".to_owned());
        assert_eq!(of(None, "/spans").unwrap(), (None, "/spans".into()));
        assert_eq!(of(Some("blue"), "/spans").unwrap(), (blue(), "/spans".into()));
        assert_eq!(of(None, "/tenant/blue/spans").unwrap(), (blue(), "/spans".into()));
        assert_eq!(of(Some("blue"), "/tenant/blue/").unwrap(), (blue(), "/".into()));
        assert!(of(Some("red"), "/tenant/blue/").unwrap_err().contains("X-Scope-OrgID says red"));
        assert_eq!(of(None, "/tenants").unwrap(), (None, "/tenants".into()));
    }

    #[test]
    fn names_are_those_of_grafana() {
        for good in ["a", "Team-1", "it's_(a)*name!.", &"n".repeat(150)] {
            assert_eq!(Tenant::parse(good, "it").unwrap().to_string(), good);
        }
        for bad in ["", ".", "..", "a/b", "a|b", "a b", "ä", "a\\b", "<b>", &"n".repeat(151)] {
            let refused = Tenant::parse(bad, "X-Scope-OrgID").unwrap_err();
            assert!(refused.contains("X-Scope-OrgID") && refused.contains("1 to 150 letters"), "{refused}");
        }
        // An address is not decoded, so nothing is hidden in it.
        assert!(of(None, "/tenant/%2e%2e/spans").is_err());
    }
}
