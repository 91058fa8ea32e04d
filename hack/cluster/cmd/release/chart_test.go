package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestChart_anotherDay_sameBytes(t *testing.T) {
	dir, r := t.TempDir(), sample()
	put(t, 0o600, "apiVersion: v2\nname: agent\nversion: 1.2.3-dev+abc\n", dir, "chart", "agent", "Chart.yaml")
	packed := filepath.Join(dir, "agent.tgz")
	if err := archive(packed, filepath.Join(dir, "chart"), r.at); err != nil {
		t.Fatal(err)
	}
	var all [2][]byte
	for i := range all {
		file := filepath.Join(dir, "chart.oci.tar")
		if err := r.writeChart(file, packed); err != nil {
			t.Fatal(err)
		}
		all[i], _ = os.ReadFile(file)
	}
	content, err := os.ReadFile(packed)
	if err != nil || !bytes.Equal(all[0], all[1]) || !bytes.Contains(all[0], content) || !bytes.Contains(all[0], []byte(`"org.opencontainers.image.ref.name": "1.2.3-dev_abc"`)) || !bytes.Contains(all[0], []byte("cncf.helm.chart.content")) {
		t.Errorf("error %v; equal: %t; %d bytes", err, bytes.Equal(all[0], all[1]), len(all[0]))
	}
	put(t, 0o600, "text", dir, "no.tgz")
	for _, file := range []string{"no.tgz", "missing.tgz"} {
		if err := r.writeChart(filepath.Join(dir, "out.tar"), filepath.Join(dir, file)); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: error %v", file, err)
		}
	}
}
