use super::*;

#[test]
fn an_inbox_is_looked_at_again_until_a_glance_is_as_new() {
    let mut pause = LOOK_AGAIN / 2;
    let mut looks = Vec::new();
    while pause < LOOK_EVERY {
        pause = Left::Nothing.next_look(pause);
        looks.push(pause.as_millis());
    }
    assert_eq!(looks, [40, 80, 160, 320, 500]);
    assert_eq!(Left::Fresh.next_look(LOOK_EVERY), LOOK_AGAIN);
}
