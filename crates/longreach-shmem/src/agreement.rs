//! Descriptions of a call, which PEs compare before they use each other's bytes.

/// A call as its PE sees it: named fields in a fixed order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    fields: Vec<(String, String)>,
}

/// Two PEs' calls differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Name of the first field that differs.
    pub field: String,
    /// What this PE has there.
    pub mine: String,
    /// What the other PE has there.
    pub theirs: String,
}

impl Description {
    /// A description without fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with another field.
    pub fn field(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        // A line break would end the field on the wire.
        self.fields.push((name.to_owned(), value.to_string().replace('\n', " ")));
        self
    }

    /// The description as bytes, a line a field.
    pub fn encode(&self) -> Vec<u8> {
        self.fields.iter().map(|(name, value)| format!("{name}={value}\n")).collect::<String>().into_bytes()
    }

    /// Reads what [`Description::encode`] wrote; bytes that are none give a description that equals no other.
    pub fn decode(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let fields = text.lines().map(|line| {
            let (name, value) = line.split_once('=').unwrap_or((line, ""));
            (name.to_owned(), value.to_owned())
        });
        Self { fields: fields.collect() }
    }

    /// A 64-bit digest (FNV-1a) of the encoded description.
    pub fn digest(&self) -> u64 {
        #[cfg(shuttle)]
        if longreach_device::sync::omitted::is("agreement") {
            return 0;
        }
        digest(&self.encode())
    }

    /// The first field in which `theirs` differs.
    pub fn compare(&self, theirs: &Self) -> Result<(), Mismatch> {
        let none = ("(nothing)".to_owned(), "(nothing)".to_owned());
        for place in 0..self.fields.len().max(theirs.fields.len()) {
            let (mine, other) =
                (self.fields.get(place).unwrap_or(&none), theirs.fields.get(place).unwrap_or(&none));
            if mine != other {
                let field = if mine.0 == none.0 { other } else { mine };
                return Err(Mismatch {
                    field: field.0.clone(),
                    mine: mine.1.clone(),
                    theirs: other.1.clone(),
                });
            }
        }
        Ok(())
    }
}

/// FNV-1a over `bytes`, 64 bits.
pub fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_named_with_both_values() {
        let mine = Description::new().field("mask", "causal").field("scale", 0.5);
        let theirs = Description::new().field("mask", "causal").field("scale", 0.25);
        assert_eq!(mine.compare(&Description::decode(&mine.encode())), Ok(()));
        let found = mine.compare(&Description::decode(&theirs.encode())).unwrap_err();
        assert_eq!(
            (found.field.as_str(), found.mine.as_str(), found.theirs.as_str()),
            ("scale", "0.5", "0.25")
        );
        assert_ne!(mine.digest(), theirs.digest());
    }

    #[test]
    fn a_missing_field_and_noise_are_differences() {
        let mine = Description::new().field("mask", "causal").field("scale", 0.5);
        assert_eq!(mine.compare(&Description::new().field("mask", "causal")).unwrap_err().field, "scale");
        assert!(mine.compare(&Description::decode(&[0xff, 0, 7])).is_err());
    }
}
