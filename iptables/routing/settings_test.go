package routing

import "testing"

func TestConfuses_release_isToldByItsNumber(t *testing.T) {
	t.Parallel()
	for release, want := range map[string]bool{
		"5.10.0-32-amd64": true, "5.14.0-503.el9.x86_64": true, "6.1.0-50-amd64": true, "6.6.97+": true,
		"6.7.0-rc1": false, "6.12.117+deb13-amd64": false, "10.1": false, "unknown": false,
	} {
		if got := confuses(release); got != want {
			t.Errorf("%s: %v", release, got)
		}
	}
}
