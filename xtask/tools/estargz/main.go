// Command estargz reads an OCI image from a registry, rebuilds every layer as
// eStargz and pushes the result under a second tag of the same repository.
//
//	estargz [-http] 127.0.0.1:5000/dev/python:gzip estargz
//
// It exists because no Debian package converts images to eStargz. The layers
// are built by the reference implementation, so the images are what the field
// really produces; everything else here is plain HTTP and JSON.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"
)

// parallel is how many layers are rebuilt at the same time.
const parallel = 2

func main() {
	plainHTTP := flag.Bool("http", false, "talk plain HTTP to the registry")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: estargz [-http] HOST/NAME:TAG NEWTAG")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	if err := convert(flag.Arg(0), flag.Arg(1), *plainHTTP); err != nil {
		fmt.Fprintf(os.Stderr, "estargz: %s: %v\n", flag.Arg(0), err)
		os.Exit(1)
	}
}

// convert copies the image `source` to the tag `tag`, layers rebuilt.
func convert(source, tag string, plainHTTP bool) error {
	repo, sourceTag, err := parseReference(source, plainHTTP)
	if err != nil {
		return err
	}
	var manifest manifest
	if err := repo.getManifest(sourceTag, &manifest); err != nil {
		return err
	}
	layers, err := rebuildAll(repo, manifest.Layers)
	if err != nil {
		return err
	}
	config, err := newConfig(repo, manifest.Config, layers)
	if err != nil {
		return err
	}
	manifest.Config = config
	manifest.Layers = manifest.Layers[:0]
	for _, l := range layers {
		manifest.Layers = append(manifest.Layers, l.descriptor)
	}
	body, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	return repo.putManifest(tag, manifest.MediaType, body)
}

// rebuildAll rebuilds the layers, a few at a time, and keeps their order.
func rebuildAll(repo *repository, sources []descriptor) ([]layer, error) {
	out := make([]layer, len(sources))
	errs := make([]error, len(sources))
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, source := range sources {
		wg.Add(1)
		go func(i int, source descriptor) {
			defer wg.Done()
			slots <- struct{}{}
			defer func() { <-slots }()
			out[i], errs[i] = rebuild(repo, source)
		}(i, source)
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("layer %d (%s): %w", i, sources[i].Digest, err)
		}
	}
	return out, nil
}

// newConfig pushes the image config with the diff ids of the new layers. All
// other fields are kept byte for byte.
func newConfig(repo *repository, old descriptor, layers []layer) (descriptor, error) {
	raw, err := repo.getBlob(old)
	if err != nil {
		return descriptor{}, err
	}
	var config map[string]json.RawMessage
	if err := json.Unmarshal(raw, &config); err != nil {
		return descriptor{}, fmt.Errorf("image config: %w", err)
	}
	rootfs := rootfs{Type: "layers"}
	for _, l := range layers {
		rootfs.DiffIDs = append(rootfs.DiffIDs, l.diffID)
	}
	if config["rootfs"], err = json.Marshal(rootfs); err != nil {
		return descriptor{}, err
	}
	body, err := json.Marshal(config)
	if err != nil {
		return descriptor{}, err
	}
	d := descriptor{MediaType: old.MediaType, Digest: digestOf(body), Size: int64(len(body))}
	return d, repo.putBlob(d, bytes.NewReader(body))
}
