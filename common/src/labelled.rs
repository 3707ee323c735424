//! Enums whose variants have labels.

/// Declares an enum whose variants each have one label, the same in SQL, JSON, metrics and logs. `ALL` lists the
/// variants in their order, `text` returns the label of one, and `parse` finds the variant of a label.
#[macro_export]
macro_rules! labelled {
    ($(#[$of_enum:meta])* $vis:vis enum $name:ident {
        $($(#[$of_variant:meta])* $variant:ident = $label:literal),* $(,)?
    }) => {
        $(#[$of_enum])*
        $vis enum $name { $($(#[$of_variant])* $variant),* }

        impl $name {
            $vis const ALL: [Self; [$($label),*].len()] = [$(Self::$variant),*];

            $vis const fn text(self) -> &'static str {
                match self { $(Self::$variant => $label),* }
            }

            #[allow(dead_code, reason = "some labels are only written")]
            $vis fn parse(label: &str) -> Option<Self> {
                match label {
                    $($label => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    crate::labelled! {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Answer {
            Yes = "yes",
            NotYet = "not_yet",
        }
    }

    #[test]
    fn each_label_is_read_back_and_no_other_text() {
        assert!(Answer::ALL.into_iter().all(|answer| Answer::parse(answer.text()) == Some(answer)));
        assert_eq!(["", "Yes", "notyet"].map(Answer::parse), [None; 3]);
    }
}
