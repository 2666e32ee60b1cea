"""Images depend on (dataset, seed, split, index) alone, differ, and can be learnt."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddlbench.datasets.synthetic import Content, CounterRng, _class_codes, _num_planes
from ddlbench.experiment.dataset_spec import DATASETS


def _images(name, split, count, seed=0):
    content = Content(DATASETS[name], seed)
    recipe = content.recipe(split, 0, count)
    return content.draw(recipe), recipe.labels


@given(first=st.integers(0, 5000), count=st.integers(0, 300))
def test_random_words_can_be_read_from_any_place(first, count):
    words = CounterRng("a", 1)
    np.testing.assert_array_equal(words.take(first, count), words.take(0, first + count)[first:])


def test_random_words_of_other_names_differ():
    assert not np.array_equal(CounterRng("a", 1).take(0, 8), CounterRng("a", 2).take(0, 8))
    assert not np.array_equal(CounterRng("ab", "c").take(0, 8), CounterRng("a", "bc").take(0, 8))


_CONTENT = Content(DATASETS["mnist"], 3)
_WHOLE = {split: _CONTENT.draw(_CONTENT.recipe(split, 0, 300)) for split in ("train", "val")}


@given(
    split=st.sampled_from(["train", "val"]), first=st.integers(0, 299), count=st.integers(1, 300)
)
def test_an_image_does_not_depend_on_who_draws_it_with_what(split, first, count):
    count = min(count, 300 - first)
    part = _CONTENT.draw(_CONTENT.recipe(split, first, count))
    np.testing.assert_array_equal(part, _WHOLE[split][first : first + count])


def test_known_bytes_stay_as_they_are():
    """Change CONTENT_VERSION with these: staged data of the old content must not be reused."""
    images, labels = _images("cifar10", "train", 4)
    assert labels.tolist() == [9, 5, 4, 3]
    assert images.astype(np.int64).sum(axis=(1, 2, 3)).tolist() == [423384, 405612, 398434, 421277]


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_no_two_images_are_equal(name):
    seen = set()
    for seed in (0, 1):
        for split, count in (("train", 4000), ("val", 1000)):
            images, _ = _images(name, split, count, seed)
            seen.update(image.tobytes() for image in images)
    assert len(seen) == 10_000


def test_images_of_a_class_take_distinct_slices_of_noise_in_the_full_dataset():
    spec = DATASETS["imagenet"]
    content = Content(spec, 0)
    recipes = [content.recipe("train", 0, spec.num_train), content.recipe("val", 0, spec.num_val)]
    keys = np.concatenate([r.labels * (1 << 32) + r.slices for r in recipes])
    assert len(np.unique(keys)) == spec.num_train + spec.num_val


@pytest.mark.parametrize(("name", "count"), [("mnist", 1234), ("imagenet", 2500)])
def test_labels_are_balanced_and_not_in_order(name, count):
    spec = DATASETS[name]
    labels = Content(spec, 0).labels("train", 0, count)
    counts = np.bincount(labels, minlength=spec.num_classes)
    assert counts.max() - counts.min() <= 1
    runs = labels[: 2 * spec.num_classes].reshape(2, -1)
    assert not np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], np.arange(spec.num_classes))


@pytest.mark.parametrize("name", sorted(n for n in DATASETS if DATASETS[n].kind != "tokens"))
def test_classes_have_codes_that_differ_in_all_channels_but_one(name):
    spec = DATASETS[name]
    codes = _class_codes(spec.num_classes, spec.channels, _num_planes(spec))
    agreement = (codes[:, None] == codes[None]).sum(-1)
    np.fill_diagonal(agreement, 0)
    assert agreement.max() <= min(1, spec.channels - 1)
    assert all(len(set(code)) == spec.channels for code in codes.tolist())


@pytest.mark.parametrize("name", ["imagenet", "highres"])
def test_large_images_have_their_shape_and_use_the_grey_levels(name):
    images, _ = _images(name, "val", 3)
    assert images.shape == (3, *DATASETS[name].shape)
    assert images.min() < 40
    assert images.max() > 215


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_small_network_learns_within_tens_of_steps(name):
    torch.manual_seed(0)
    spec = DATASETS[name]

    def tensors(split, count):
        images, labels = _images(name, split, count)
        return torch.from_numpy(images) / 63.75 - 2, torch.from_numpy(labels)

    inputs, labels = tensors("train", 40 * 16)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(spec.channels, 16, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(spec.num_classes),
    )
    losses = []
    optimizer = None
    for batch, target in zip(inputs.split(16), labels.split(16), strict=True):
        loss = torch.nn.functional.cross_entropy(network(batch), target)
        optimizer = optimizer or torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:3])
    images, expected = tensors("val", 500)
    assert (network(images).argmax(1) == expected).float().mean() > 0.8


def test_all_classes_of_a_thousand_can_be_told_apart():
    """Nearest class mean of images shrunk to 8x8: far over the 0.1 % of guessing."""
    spec = DATASETS["imagenet"]
    content = Content(spec, 0)

    def shrunk(split, count):
        recipe = content.recipe(split, 0, count)
        small = [content.draw(recipe[i : i + 1])[0] for i in range(count)]
        small = [image.reshape(3, 8, 28, 8, 28).mean((2, 4)).ravel() for image in small]
        return np.array(small), recipe.labels

    train, train_labels = shrunk("train", 1000)
    val, val_labels = shrunk("val", 100)
    distances = ((val[:, None] - train[None]) ** 2).sum(-1)
    assert (train_labels[distances.argmin(1)] == val_labels).mean() > 0.3
