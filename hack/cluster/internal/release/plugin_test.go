package release

import (
	"archive/zip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// withPlugins is sample with plugins for two platforms.
func withPlugins(t *testing.T) Release {
	t.Helper()
	r := sample(t)
	dir := t.TempDir()
	r.Plugins, r.Krew, r.URL = filepath.Join(dir, "plugins"), "../../../krew.yaml", "https://files.example.com"
	r.Source, r.Go = "https://git.example.com/x", "go1.26.0"
	write(t, filepath.Join(r.Plugins, "darwin-arm64", PluginName), "for a Mac")
	write(t, filepath.Join(r.Plugins, "windows-amd64", PluginName+".exe"), "for Windows")
	return r
}

func read(t *testing.T, parts ...string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestPackPlugins_platforms_haveArchivesAndKrewsManifest(t *testing.T) {
	r := withPlugins(t)
	if err := r.Pack(); err != nil {
		t.Fatal(err)
	}
	first := read(t, r.Output, SumsFile)
	r.Output = t.TempDir()
	if err := r.Pack(); err != nil || read(t, r.Output, SumsFile) != first {
		t.Errorf("the second is different: %v\n%s\n%s", err, first, read(t, r.Output, SumsFile))
	}
	const mac, windows = "kubectl-pod_network-1.2.3-dev+abc-darwin-arm64", "kubectl-pod_network-1.2.3-dev+abc-windows-amd64"
	manifest := read(t, r.Output, "pod-network.yaml")
	for file, dir := range map[string]string{mac + ".tar.gz": mac, windows + ".zip": windows} {
		sum, err := sumOf(filepath.Join(r.Output, file))
		want := "    uri: https://files.example.com/" + file + "\n    sha256: " + sum + "\n"
		if err != nil || !strings.Contains(manifest, want) || !strings.Contains(manifest, `- from: "`+dir+`/*"`) || !strings.Contains(first, sum+"  "+file+"\n") {
			t.Errorf("%v: no %q in %s%s", err, want, manifest, first)
		}
	}
	if !strings.Contains(manifest, "bin: kubectl-pod_network.exe\n") || !strings.Contains(manifest, "os: darwin\n        arch: arm64\n") {
		t.Error(manifest)
	}
	archive, err := zip.OpenReader(filepath.Join(r.Output, windows+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	names := map[string]string{}
	for _, f := range archive.File {
		in, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(in)
		if err != nil || !f.Modified.Equal(r.Time) {
			t.Errorf("%s: %v, %s", f.Name, err, f.Modified)
		}
		names[strings.TrimPrefix(f.Name, windows+"/")] = string(content)
	}
	if diff := cmp.Diff(map[string]string{
		"kubectl-pod_network.exe": "for Windows", "kubectl_complete-pod_network.cmd": "@kubectl-pod_network __complete %*\r\n", "LICENSE": "free",
	}, names); diff != "" {
		t.Error(diff)
	}
}

func TestPack_provenance_namesEveryFile(t *testing.T) {
	r := withPlugins(t)
	if err := r.Pack(); err != nil {
		t.Fatal(err)
	}
	var statement struct {
		Type          string `json:"_type"`
		PredicateType string
		Subject       []struct {
			Name   string
			Digest struct{ SHA256 string }
		}
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct {
					URI    string
					Digest struct{ GitCommit string }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(read(t, r.Output, ProvenanceFile)), &statement); err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for _, s := range statement.Subject {
		lines.WriteString(s.Digest.SHA256 + "  " + s.Name + "\n")
	}
	own, err := sumOf(filepath.Join(r.Output, ProvenanceFile))
	if err != nil || strings.Replace(read(t, r.Output, SumsFile), own+"  "+ProvenanceFile+"\n", "", 1) != lines.String() {
		t.Errorf("%v: %s", err, lines.String())
	}
	from := statement.Predicate.BuildDefinition.ResolvedDependencies
	if statement.Type != statementType || statement.PredicateType != predicateType || from[0].URI != "git+https://git.example.com/x" || from[0].Digest.GitCommit != "abcdef" || from[1].URI != "pkg:generic/go@go1.26.0" {
		t.Errorf("%+v", statement)
	}
}

func TestPackPlugins_wrong_isRefused(t *testing.T) {
	for want, change := range map[string]func(*Release){
		"no plugins in": func(r *Release) { r.Plugins = t.TempDir() },
		"no such file":  func(r *Release) { write(t, filepath.Join(r.Plugins, "linux-arm64", "other"), "") },
		"41943041 bytes: want ": func(r *Release) {
			write(t, filepath.Join(r.Plugins, "linux-arm64", PluginName), strings.Repeat("x", maxPlugin+1))
		},
		"read krew's manifest": func(r *Release) { r.Krew = "none" },
	} {
		r := withPlugins(t)
		change(&r)
		if err := r.Pack(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
