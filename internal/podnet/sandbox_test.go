package podnet

import (
	"encoding/json"
	"testing"
)

func TestWhatTheAgentRemembersIsNotSent(t *testing.T) {
	s := Sandbox{
		Namespace: "shop", Name: "cart", UID: "u", ID: "s", NetNS: "/n", Nameservers: "192.0.2.1", RuntimeHandler: "kata",
		Identity: Identity{Dev: 1, Ino: 2, Cookie: 3}, Attempt: 4, CreatedAt: 5,
	}
	got, err := json.Marshal(s)
	want := `{"namespace":"shop","name":"cart","uid":"u","id":"s","netns":"/n","nameservers":"192.0.2.1","runtimeHandler":"kata"}`
	if err != nil || string(got) != want {
		t.Errorf("got %s, error %v\nwant %s", got, err, want)
	}
}

func TestWhichSandboxIsNewer(t *testing.T) {
	for name, c := range map[string]struct {
		s, other Sandbox
		want     bool
	}{
		"made later":                          {s: Sandbox{CreatedAt: 2}, other: Sandbox{CreatedAt: 1}, want: true},
		"made earlier":                        {s: Sandbox{CreatedAt: 1}, other: Sandbox{CreatedAt: 2}},
		"the same":                            {s: Sandbox{CreatedAt: 1}, other: Sandbox{CreatedAt: 1}},
		"a later attempt by a clock set back": {s: Sandbox{CreatedAt: 1, Attempt: 1}, other: Sandbox{CreatedAt: 2}, want: true},
		"an earlier attempt":                  {s: Sandbox{CreatedAt: 2}, other: Sandbox{CreatedAt: 1, Attempt: 1}},
		"of unknown age":                      {s: Sandbox{Attempt: 1}, other: Sandbox{CreatedAt: 1}},
		"than one of unknown age":             {s: Sandbox{CreatedAt: 1, Attempt: 1}, other: Sandbox{}},
	} {
		if got := c.s.NewerThan(c.other); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
