//! Enums whose variants have labels.

/// Declares an enum whose variants each have one label, the same in SQL, JSON, metrics and logs. `ALL` lists the
/// variants in their order, and `text` returns the label of one.
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
        }
    };
}
