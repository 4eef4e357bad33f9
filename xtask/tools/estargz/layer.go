package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"strconv"

	"github.com/containerd/stargz-snapshotter/estargz"
)

const layerMediaType = "application/vnd.oci.image.layer.v1.tar+gzip"

type layer struct {
	descriptor descriptor
	diffID     string
}

// rebuild fetches one layer, builds it anew as eStargz and pushes that.
func rebuild(repo *repository, source descriptor) (layer, error) {
	raw, err := repo.getBlob(source)
	if err != nil {
		return layer{}, err
	}
	tar := io.NewSectionReader(bytes.NewReader(raw), 0, int64(len(raw)))
	blob, err := estargz.Build(tar)
	if err != nil {
		return layer{}, err
	}
	file, size, digest, err := spool(blob)
	if err != nil {
		return layer{}, err
	}
	defer file.Close()
	uncompressed, err := gunzippedSize(file)
	if err != nil {
		return layer{}, err
	}
	d := descriptor{
		MediaType: layerMediaType,
		Digest:    digest,
		Size:      size,
		Annotations: map[string]string{
			estargz.TOCJSONDigestAnnotation:         blob.TOCDigest().String(),
			estargz.StoreUncompressedSizeAnnotation: strconv.FormatInt(uncompressed, 10),
		},
	}
	return layer{d, blob.DiffID().String()}, repo.putBlob(d, io.NewSectionReader(file, 0, size))
}

// spool writes the built layer to an unnamed file, because its digest has to be
// known before it can be pushed.
func spool(blob *estargz.Blob) (file *os.File, size int64, digest string, err error) {
	file, err = os.CreateTemp("", "estargz-layer-")
	if err != nil {
		return nil, 0, "", err
	}
	os.Remove(file.Name())
	hash := newHash()
	size, err = io.Copy(io.MultiWriter(file, hash), blob)
	if closeErr := blob.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		file.Close()
		return nil, 0, "", err
	}
	return file, size, digestString(hash), nil
}

func gunzippedSize(file *os.File) (int64, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	gz, err := gzip.NewReader(file)
	if err != nil {
		return 0, err
	}
	return io.Copy(io.Discard, gz)
}
