//! The certificate files of the node and of its connections to stores.

use std::path::PathBuf;

use super::complaint::Complaints;

/// The PEM files of one section.
#[derive(Clone, Copy, Debug)]
pub(super) struct Files<'a> {
    pub section: &'static str,
    pub ca: &'a Option<PathBuf>,
    pub cert: &'a Option<PathBuf>,
    pub key: &'a Option<PathBuf>,
    /// Why the files cannot be used, if the URL takes no certificates.
    pub unusable: Option<&'static str>,
}

impl Files<'_> {
    pub(super) fn check(self, complaints: &mut Complaints) {
        let Self { section, ca, cert, key, unusable } = self;
        let without = |partner: &str| format!("is set without {section}.{partner}; set both or neither");
        match (cert, key) {
            (Some(_), None) => complaints.add(format!("{section}.cert_file"), without("key_file")),
            (None, Some(_)) => complaints.add(format!("{section}.key_file"), without("cert_file")),
            _ => {}
        }
        for (name, file) in [("ca", ca), ("cert", cert), ("key", key)] {
            let (Some(file), name) = (file, format!("{section}.{name}_file")) else { continue };
            if let Err(error) = std::fs::read(file) {
                complaints.add(name, format!("names {}, which cannot be read: {error}", file.display()));
            } else if let Some(why) = unusable {
                complaints.add(name, why);
            }
        }
    }
}
