//! What the fuzz target and the corpus replay both run.

use release_policy::Policy;

/// Any text is refused or a policy; a policy is written so that it parses to the same again.
pub fn policy(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(policy) = Policy::from_toml(text) {
        let written = toml::to_string(&policy).expect("a policy is tables and lists");
        assert_eq!(Policy::from_toml(&written).as_ref(), Ok(&policy));
    }
}
