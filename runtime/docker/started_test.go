package docker

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
)

func TestFirstStart_containersOfTheSandbox_givesTheEarliestThatCounts(t *testing.T) {
	e := &fakeEngine{apiVersion: "1.44", ignoresFilter: true, containers: map[string]json.RawMessage{}}
	for id, c := range map[string]struct{ name, sandbox, started string }{
		"1": {"app", "box", "2026-11-29T00:00:02.5Z"},
		"2": {"app", "box", "2026-11-29T00:00:01.25Z"},
		"3": {"istio-proxy", "box", "2026-11-29T00:00:00Z"},
		"4": {"app", "another", "2026-11-29T00:00:00Z"},
		"5": {"app", "box", "0001-01-01T00:00:00Z"},
		"6": {"", "box", "2026-11-29T00:00:00Z"},
		"7": {name: "app", sandbox: "box"}, // removed by now
	} {
		e.list = append(e.list, container.Summary{ID: id, Labels: map[string]string{labelContainerName: c.name, labelSandboxID: c.sandbox}})
		if c.started != "" {
			e.containers[id] = json.RawMessage(`{"Id": "` + id + `", "State": {"StartedAt": "` + c.started + `"}}`)
		}
	}
	f := newFinder(t, serve(t, e))
	apps := func(name string) bool { return name == "app" }
	if at, err := f.FirstStart(t.Context(), "box", apps); err != nil || !at.Equal(time.Date(2026, 11, 29, 0, 0, 1, 250_000_000, time.UTC)) {
		t.Errorf("%v, error %v", at, err)
	}
	if at, err := f.FirstStart(t.Context(), "none", apps); err != nil || !at.IsZero() {
		t.Errorf("an unknown sandbox: %v, error %v", at, err)
	}
}
