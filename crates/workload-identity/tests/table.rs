//! Every RPC of every service is in the authorisation table, and nothing else is.

use std::collections::BTreeSet;

use prost::Message;
use prost_types::FileDescriptorSet;
use workload_identity::{allowed_roles, methods};

#[test]
fn the_table_has_every_rpc_and_no_other() {
    let set = FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET).unwrap();
    let mut declared = BTreeSet::new();
    for file in &set.file {
        for service in &file.service {
            for method in &service.method {
                declared.insert(format!(
                    "/{}.{}/{}",
                    file.package(),
                    service.name(),
                    method.name()
                ));
            }
        }
    }
    assert!(declared.len() > 30);
    for path in &declared {
        let roles = allowed_roles(path).unwrap_or_else(|| panic!("{path} is not in the table"));
        assert!(!roles.is_empty(), "{path}");
    }
    let ours: BTreeSet<String> = methods()
        .filter(|path| path.starts_with("/chancery."))
        .map(str::to_owned)
        .collect();
    assert_eq!(ours, declared);
}
