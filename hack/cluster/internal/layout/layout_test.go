package layout

import (
	"strings"
	"testing"
)

func TestNew_statesAreOutsideTheCache_andApart(t *testing.T) {
	seen := map[string]bool{}
	for name, run := range map[string]string{"": RunDir + "/", "second": RunDir + "-second/"} {
		l, err := New("", "/cache", name)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{l.State(), l.Logs(), l.PKI(), l.Kubeconfig("admin")} {
			if !strings.HasPrefix(path, run) || seen[path] {
				t.Errorf("%s is not below %s, or is another cluster's", path, run)
			}
			seen[path] = true
		}
		for _, path := range []string{l.Data(), l.FailedLogs()} {
			if !strings.HasPrefix(path, "/cache/") || seen[path] {
				t.Errorf("%s is not in the cache, or is another cluster's", path)
			}
			seen[path] = true
		}
	}
	if _, err := New("", "/cache", "../x"); err == nil || !strings.Contains(err.Error(), `"../x"`) {
		t.Errorf("a name that leads elsewhere: error %v", err)
	}
}
