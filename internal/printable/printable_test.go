package printable

import "testing"

func TestLine(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"ordinary text":               {"Grüße, 世界", "Grüße, 世界"},
		"ends of lines and tabs":      {"a\r\nb\tc\u2028d\u0085e", "a  b c d e"},
		"an escape of a terminal":     {"\x1b[2Ja", "?[2Ja"},
		"its form of one character":   {"\u009b2Ja", "?2Ja"},
		"a character that turns text": {"a\u202eb\u2066c", "a?b?c"},
		"one that nobody sees":        {"a\u200bb", "a?b"},
		"what is no UTF-8":            {"a\xffb", "a\ufffdb"},
		"deleting what was there":     {"a\x7f\bb", "a??b"},
	} {
		if got := Line(tc.in); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestCount_number_hasItsNoun(t *testing.T) {
	for want, got := range map[string]string{"1 pod": Count(1, "pod"), "0 pods": Count(0, "pod"), "1 proxy": Count(1, "proxy"), "2 proxies": Count(2, "proxy")} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestLines(t *testing.T) {
	if got, want := Lines("a\tb\n\x1bc\n"), "a b\n?c\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
